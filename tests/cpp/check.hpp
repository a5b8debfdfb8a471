// A small test harness. A test_*.cpp that includes it becomes an executable with a main of its own:
//   TEST(name) { CHECK(x > 0); CHECK_EQ(f(2), 4); CHECK_THROWS(f(-1), "part of the message"); }
// A failing check is printed and the test goes on; an exception ends its test as failed.
#pragma once

#include <algorithm>
#include <concepts>
#include <exception>
#include <iostream>
#include <ranges>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*body)();
};
inline std::vector<Test> tests;
inline bool failing = false;  // whether a check of the running test has failed

inline bool add(const char* name, void (*body)()) { return tests.push_back({name, body}), true; }

inline void fail(const char* file, int line, const std::string& what) {
  failing = true;
  std::cout << file << ":" << line << ": " << what << "\n";
}

template <class T>
void print(std::ostream& out, const T& value) {
  if constexpr (requires { out << value; }) {
    out << value;
  } else if constexpr (std::ranges::input_range<T>) {
    const char* separator = "[";
    for (const auto& element : value) print(out << std::exchange(separator, ", "), element);
    out << (*separator == '[' ? "[]" : "]");
  } else {
    out << "(a value without operator<<)";
  }
}

template <class A, class B>
void equal(const char* file, int line, const char* text, const A& a, const B& b) {
  if constexpr (std::integral<A> && std::integral<B> && !std::same_as<A, B>) {
    if (std::cmp_equal(a, b)) return;  // a size equals a literal, whatever the signs of their types
  } else if (a == b) {
    return;
  }
  std::ostringstream what;
  print(what << "CHECK_EQ(" << text << "): ", a);
  print(what << " != ", b);
  fail(file, line, what.str());
}

inline void throws(const char* file, int line, const char* text, const std::string& part, const auto& expression) {
  std::string got = "nothing was thrown";
  try {
    expression();
  } catch (const std::exception& error) {
    got = error.what();
    if (got.find(part) != std::string::npos) return;
  }
  fail(file, line, "CHECK_THROWS(" + std::string(text) + ", \"" + part + "\"): " + got);
}

inline bool run(const Test& test) {
  failing = false;
  try {
    test.body();
  } catch (const std::exception& error) {
    fail(test.name, 0, std::string("threw ") + error.what());
  }
  if (failing) std::cout << "FAILED: " << test.name << "\n";
  return !failing;
}

}  // namespace check

#define TEST(name)                                                                  \
  static void test_##name();                                                        \
  [[maybe_unused]] static const bool added_##name = check::add(#name, test_##name); \
  static void test_##name()
#define CHECK(...) \
  (static_cast<bool>(__VA_ARGS__) ? void() : check::fail(__FILE__, __LINE__, "CHECK(" #__VA_ARGS__ ")"))
#define CHECK_EQ(...) check::equal(__FILE__, __LINE__, #__VA_ARGS__, __VA_ARGS__)
#define CHECK_THROWS(expression, part) \
  check::throws(__FILE__, __LINE__, #expression, part, [&] { static_cast<void>(expression); })

int main() {
  const auto passed = std::ranges::count_if(check::tests, check::run);
  const auto failed = std::ssize(check::tests) - passed;
  std::cout << passed << " passed, " << failed << " failed\n";
  return failed == 0 ? 0 : 1;
}
