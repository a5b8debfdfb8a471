// Included before every source of the copy: M(17) is true while change 17 is tried. Whoever asks is recorded.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>

#include <cstdlib>

// The number of the change that is tried, then a byte for each change that was reached. Jobs that a test starts share
// the file of the rank that starts them. Without a file, MUTATION is the number.
struct Mutations {
  int tried;
  char reached[(1 << 16) - sizeof(int)];
};

inline Mutations& mutations() {
  static Mutations* const shared = [] {
    static Mutations own;
    const char* const number = std::getenv("MUTATION");
    own.tried = number == nullptr ? -1 : std::atoi(number);
    const char* const path = std::getenv("MUTATIONS_FILE");
    const int file = path == nullptr ? -1 : open(path, O_RDWR);
    void* const mapped =
        file < 0 ? MAP_FAILED : mmap(nullptr, sizeof(Mutations), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return mapped == MAP_FAILED ? &own : static_cast<Mutations*>(mapped);
  }();
  return *shared;
}

inline bool M(int change) {
  mutations().reached[change] = 1;
  return change == *static_cast<volatile int*>(&mutations().tried);
}
