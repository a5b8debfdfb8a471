#include "agreement/structure.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

#include "base/text.hpp"
#include "comm/error.hpp"
#include "comm/waiting.hpp"

namespace distdl::agreement {

namespace {

constexpr std::size_t kMaxDims = 32;
constexpr std::size_t kUsualDims = 8;
constexpr std::size_t kMaxText = 400;

/// A Structure as it travels, with the derivatives of its rank.
struct Record {
  std::array<std::int64_t, kUsualDims> sizes;
  std::int32_t dims;
  std::int8_t dtype;
  std::int8_t device;
  std::int8_t present;
  std::int8_t error_kind;
  std::int8_t requires_grad;
  std::int8_t has_tangent;
  std::int8_t grad_disabled;

  bool has_details() const {
    return dims > static_cast<std::int32_t>(kUsualDims) ||
           error_kind != static_cast<std::int8_t>(Structure::Error::none);
  }
};

/// What travels as well, if any rank has an error or many dimensions.
struct Details {
  std::array<std::int64_t, kMaxDims> sizes;
  std::array<char, kMaxText> error;
};

void refuse_dims(Structure& structure) {
  if (structure.sizes.size() <= kMaxDims) return;
  structure.refuse(Structure::Error::value, "has " + std::to_string(structure.sizes.size()) + " dimensions; at most " +
                                                std::to_string(kMaxDims) + " are supported");
  structure.sizes.clear();
}

Record record_of(const Structure& structure, Derivatives derivatives) {
  Record record{};
  const auto kept = std::min(structure.sizes.size(), kUsualDims);
  std::copy_n(structure.sizes.begin(), kept, record.sizes.begin());
  record.dims = static_cast<std::int32_t>(structure.sizes.size());
  record.dtype = static_cast<std::int8_t>(structure.dtype);
  record.device = static_cast<std::int8_t>(structure.device);
  record.present = static_cast<std::int8_t>(structure.present);
  record.error_kind = static_cast<std::int8_t>(structure.error_kind);
  record.requires_grad = static_cast<std::int8_t>(derivatives.requires_grad);
  record.has_tangent = static_cast<std::int8_t>(derivatives.has_tangent);
  record.grad_disabled = static_cast<std::int8_t>(!records_gradients());
  return record;
}

Details details_of(const Structure& structure) {
  Details details{};
  std::copy(structure.sizes.begin(), structure.sizes.end(), details.sizes.begin());
  base::cut_to(structure.error, kMaxText - 1).copy(details.error.data(), kMaxText - 1);
  return details;
}

Structure structure_of(const Record& record, const Details* details) {
  Structure structure;
  const auto* const sizes = details == nullptr ? record.sizes.data() : details->sizes.data();
  structure.sizes.assign(sizes, sizes + record.dims);
  structure.dtype = static_cast<c10::ScalarType>(record.dtype);
  structure.device = static_cast<c10::DeviceType>(record.device);
  structure.present = record.present != 0;
  structure.error_kind = static_cast<Structure::Error>(record.error_kind);
  if (details != nullptr) structure.error = details->error.data();
  return structure;
}

/// The values of all ranks, rank by rank. Collective; all ranks pass the same number of values.
template <class T>
std::vector<T> all_gather(const RankSet& rank_set, const std::vector<T>& own) {
  std::vector<T> all(own.size() * rank_set.ranks.size());
  const auto bytes = static_cast<int>(own.size() * sizeof(T));
  comm::check(MPI_Allgather(own.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, rank_set.communicator->handle()),
              "MPI_Allgather");
  return all;
}

}  // namespace

GlobalStructure::GlobalStructure(std::size_t ranks, const std::function<Structure(std::size_t)>& structure_of) {
  std::map<Structure, std::uint32_t> known;
  which_.reserve(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto [place, is_new] = known.try_emplace(structure_of(rank), static_cast<std::uint32_t>(distinct_.size()));
    if (is_new) distinct_.push_back(place->first);
    which_.push_back(place->second);
  }
}

bool GlobalStructure::uses_devices() const {
  return std::ranges::any_of(distinct_, [](const auto& tensor) { return tensor.device != c10::DeviceType::CPU; });
}

Gathered gather(const RankSet& rank_set, std::vector<Structure> own, Derivatives derivatives) {
  std::ranges::for_each(own, refuse_dims);
  std::vector<Record> own_records;
  for (const auto& structure : own) own_records.push_back(record_of(structure, derivatives));
  const comm::Waiting waiting;
  const auto records = all_gather(rank_set, own_records);
  std::vector<Details> own_details, details;
  if (std::ranges::any_of(records, &Record::has_details)) {
    std::ranges::transform(own, std::back_inserter(own_details), details_of);
    details = all_gather(rank_set, own_details);
  }
  Gathered gathered;
  for (const auto& record : records) {
    gathered.derivatives |= {record.requires_grad != 0, record.has_tangent != 0};
    gathered.grad_disabled |= record.grad_disabled != 0;
  }
  for (std::size_t tensor = 0; tensor < own.size(); ++tensor) {
    gathered.tensors.emplace_back(rank_set.ranks.size(), [&](std::size_t rank) {
      const auto i = rank * own.size() + tensor;
      return structure_of(records[i], details.empty() ? nullptr : &details[i]);
    });
  }
  return gathered;
}

}  // namespace distdl::agreement
