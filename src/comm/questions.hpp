// What the watchdogs of the ranks ask each other: what are you at? By messages that nobody waits for, on communicators
// that are there already: it has to work just when everything else stands still.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace distdl::comm {

using Answer = std::function<std::string()>;

/// Answers what has been asked. One thread of the process does.
void answer_questions(const Answer& answer);

struct Answers {
  std::vector<int> ranks;          // in MPI_COMM_WORLD
  std::vector<std::string> texts;  // empty for who did not answer in time
};

/// Asks the ranks of a communicator, of a large one the first of them, and meanwhile answers what they ask. No answers
/// if the communicator was freed.
Answers ask_all(const Communicator* communicator, std::chrono::milliseconds patience, const Answer& answer);

/// From now on this process neither asks nor answers: MPI is about to be finalized.
void stop_questions();

}  // namespace distdl::comm
