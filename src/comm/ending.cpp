#include "comm/ending.hpp"

#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "comm/buffered_send.hpp"
#include "comm/error.hpp"
#include "comm/last_call.hpp"
#include "comm/progress.hpp"
#include "comm/watchdog.hpp"

namespace distdl::comm {

namespace {

const pid_t process = getpid();  // a forked child has another id, and takes part in no call

}  // namespace

void end_of_program() noexcept {
  static bool called = false;
  if (called || getpid() != process) return;
  called = true;
  try {
    finish_all();
    agree_on_end();
    finish_buffered_sends();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "distdl: at the end of the program: %s\n", error.what());
  }
  stop_watchdog();
}

void end_of_cell(const std::string& what) {
  finish_all();
  agree_on_pause(what);
}

void attend_finalize() {
  // MPI_Finalize deletes the attributes of MPI_COMM_SELF first, while MPI still works, and even after Python has gone.
  int key = MPI_KEYVAL_INVALID;
  const auto on_deletion = [](MPI_Comm, int, void*, void*) {
    end_of_program();
    return MPI_SUCCESS;
  };
  check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_deletion, &key, nullptr), "MPI_Comm_create_keyval");
  check(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr), "MPI_Comm_set_attr");
}

}  // namespace distdl::comm
