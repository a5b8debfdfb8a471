#include "agreement/operator_id.hpp"

namespace distdl::agreement {

namespace {

const char* text_of(Pass pass) {
  static constexpr std::array<const char*, kPasses> texts{"", ", backward", ", compiled"};
  return texts.at(static_cast<std::size_t>(pass));
}

}  // namespace

OperatorId::OperatorId(std::string operation, RankSet ranks)
    : name(std::move(operation)),
      rank_set(std::move(ranks)),
      adjoint_name_(name + " adjoint"),
      counter_(&agreement::counter(name)),
      adjoint_counter_(&agreement::counter(adjoint_name_)) {
  if (rank_set.communicator) number = rank_set.communicator->next_operator();
}

std::string OperatorId::text(Pass pass) const { return name + " number " + std::to_string(number) + text_of(pass); }

comm::Operation operation_of(const OperatorId& id, Pass pass) {
  return comm::Operation({.name = id.name,
                          .number = id.number,
                          .pass = text_of(pass),
                          .hint = pass == Pass::backward ? kBackwardRule : "",
                          .communicator = id.rank_set.communicator.get()});
}

}  // namespace distdl::agreement
