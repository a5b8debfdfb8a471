#include "agreement/structure.hpp"

#include <algorithm>
#include <array>

#include "base/text.hpp"
#include "comm/error.hpp"
#include "comm/waiting.hpp"

namespace distdl::agreement {

namespace {

constexpr std::size_t kMaxDims = 32;
constexpr std::size_t kMaxText = 400;

/// A Structure as it travels, with the derivatives of its rank.
struct Record {
  std::array<std::int64_t, kMaxDims> sizes;
  std::int32_t dims;
  std::int8_t dtype;
  std::int8_t device;
  std::int8_t present;
  std::int8_t error_kind;
  std::int8_t requires_grad;
  std::int8_t has_tangent;
  std::int8_t grad_disabled;
  std::array<char, kMaxText> error;
};

Record pack(Structure structure, Derivatives derivatives) {
  if (structure.sizes.size() > kMaxDims) {
    structure.refuse(Structure::Error::value, "has " + std::to_string(structure.sizes.size()) +
                                                  " dimensions; at most " + std::to_string(kMaxDims) +
                                                  " are supported");
    structure.sizes.clear();
  }
  Record record{};
  std::copy(structure.sizes.begin(), structure.sizes.end(), record.sizes.begin());
  record.dims = static_cast<std::int32_t>(structure.sizes.size());
  record.dtype = static_cast<std::int8_t>(structure.dtype);
  record.device = static_cast<std::int8_t>(structure.device);
  record.present = static_cast<std::int8_t>(structure.present);
  record.error_kind = static_cast<std::int8_t>(structure.error_kind);
  record.requires_grad = static_cast<std::int8_t>(derivatives.requires_grad);
  record.has_tangent = static_cast<std::int8_t>(derivatives.has_tangent);
  record.grad_disabled = static_cast<std::int8_t>(!records_gradients());
  base::cut_to(structure.error, kMaxText - 1).copy(record.error.data(), kMaxText - 1);
  return record;
}

Structure unpack(const Record& record) {
  Structure structure;
  structure.sizes.assign(record.sizes.begin(), record.sizes.begin() + record.dims);
  structure.dtype = static_cast<c10::ScalarType>(record.dtype);
  structure.device = static_cast<c10::DeviceType>(record.device);
  structure.present = record.present != 0;
  structure.error_kind = static_cast<Structure::Error>(record.error_kind);
  structure.error = record.error.data();
  return structure;
}

}  // namespace

Gathered gather(const RankSet& rank_set, std::span<const Structure> own, Derivatives derivatives) {
  const auto tensors = own.size();
  const auto bytes = static_cast<int>(tensors * sizeof(Record));
  std::vector<Record> own_records, records(tensors * rank_set.ranks.size());
  for (const auto& structure : own) own_records.push_back(pack(structure, derivatives));
  const comm::Waiting waiting;
  comm::check(MPI_Allgather(own_records.data(), bytes, MPI_BYTE, records.data(), bytes, MPI_BYTE,
                            rank_set.communicator->handle()),
              "MPI_Allgather");
  Gathered gathered{std::vector<GlobalStructure>(tensors), {}, false};
  for (std::size_t i = 0; i < records.size(); ++i) {  // rank by rank
    gathered.tensors[i % tensors].push_back(unpack(records[i]));
    gathered.derivatives |= {records[i].requires_grad != 0, records[i].has_tangent != 0};
    gathered.grad_disabled |= records[i].grad_disabled != 0;
  }
  return gathered;
}

}  // namespace distdl::agreement
