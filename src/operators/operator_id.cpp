#include "operators/operator_id.hpp"

namespace distdl::operators {

namespace {

constexpr std::array<const char*, 3> kTurns{"", ", backward", ", compiled"};

const char* text_of(Turn turn) { return kTurns.at(static_cast<std::size_t>(turn)); }

}  // namespace

Site::Site(std::string operation, Scope ranks)
    : name(std::move(operation)),
      scope(std::move(ranks)),
      adjoint_name_(name + " adjoint"),
      counter_(&operators::counter(name)),
      adjoint_counter_(&operators::counter(adjoint_name_)) {
  if (scope.communicator) number = scope.communicator->next_operator();
}

std::string Site::text(Turn turn) const { return name + " number " + std::to_string(number) + text_of(turn); }

comm::Operation doing(const Site& site, Turn turn) {
  return comm::Operation(site.name, site.number, text_of(turn), site.scope.communicator.get());
}

}  // namespace distdl::operators
