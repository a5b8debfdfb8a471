#include "kernels/moment_groups.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace distdl::kernels {

MomentGroups::MomentGroups(Channels block_channels, const std::vector<std::int64_t>& sizes, at::Tensor group_of,
                           at::Tensor counts, at::Tensor own_groups, std::int64_t groups, double total_count)
    : channels(block_channels),
      group(std::move(group_of)),
      count(std::move(counts)),
      own(std::move(own_groups)),
      size(groups),
      total(std::max(total_count, 1.0)),
      places(at::empty({2, group.numel()}, at::kLong)) {
  const auto all = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  const auto fits = [](const at::Tensor& x, at::ScalarType dtype) {
    return x.scalar_type() == dtype && x.dim() == 1 && x.is_contiguous() && x.device().is_cpu();
  };
  if (!fits(group, at::kLong) || !fits(count, at::kDouble) || !fits(own, at::kLong) || group.numel() != all ||
      count.numel() != all) {
    throw std::invalid_argument("moments of groups: a group (int64) and a count (double) for each channel");
  }
  auto *mean = places.data_ptr<std::int64_t>(), *squares = mean + all;
  std::int64_t place = 0;
  for (const auto channels_of_worker : sizes) {
    for (std::int64_t i = 0; i < channels_of_worker; ++i) *mean++ = place++;
    for (std::int64_t i = 0; i < channels_of_worker; ++i) *squares++ = place++;
  }
}

std::pair<at::Tensor, at::Tensor> MomentGroups::merge(const at::Tensor& messages) const {
  auto means = at::zeros({size}, messages.options()), squares = at::zeros({size}, messages.options());
  const auto *const values = messages.const_data_ptr<double>(), *const counts = count.const_data_ptr<double>();
  const auto* const groups = group.const_data_ptr<std::int64_t>();
  const auto* const places_of_means = places.const_data_ptr<std::int64_t>();
  auto *const to_means = means.data_ptr<double>(), *const to_squares = squares.data_ptr<double>();
  const auto n = group.numel();
  for (std::int64_t i = 0; i < n; ++i) {
    if (counts[i] > 0) to_means[groups[i]] += counts[i] * values[places_of_means[i]];
  }
  for (std::int64_t g = 0; g < size; ++g) to_means[g] /= total;
  for (std::int64_t i = 0; i < n; ++i) {
    if (counts[i] == 0) continue;  // the mean, which may be infinite, is no part of the group
    const auto apart = values[places_of_means[i]] - to_means[groups[i]];
    to_squares[groups[i]] += values[places_of_means[n + i]] + counts[i] * (apart * apart);
  }
  return {means, squares};
}

at::Tensor MomentGroups::merge_backward(const at::Tensor& messages, const at::Tensor& mean, const double* of_mean,
                                        const double* of_squares) const {
  auto result = at::zeros_like(messages);
  const auto *const values = messages.const_data_ptr<double>(), *const counts = count.const_data_ptr<double>(),
                    *const means = mean.const_data_ptr<double>();
  const auto* const groups = group.const_data_ptr<std::int64_t>();
  const auto* const places_of_means = places.const_data_ptr<std::int64_t>();
  auto* const to = result.data_ptr<double>();
  const auto n = group.numel();
  for (std::int64_t i = 0; i < n; ++i) {
    if (counts[i] == 0) continue;
    const auto g = groups[i];
    // The squares do not change with the mean of the group: its deviations have the sum 0.
    const auto apart = values[places_of_means[i]] - means[g];
    to[places_of_means[i]] = counts[i] * (of_mean[g] / total + 2 * of_squares[g] * apart);
    to[places_of_means[n + i]] = of_squares[g];
  }
  return result;
}

std::pair<at::Tensor, at::Tensor> MomentGroups::merge_by_torch(const at::Tensor& messages) const {
  const auto here = [&](const at::Tensor& x) { return x.to(messages.device()); };
  const auto groups = here(group), counts = here(count), all_places = here(places);
  const auto means = messages.index_select(0, all_places[0]), squares = messages.index_select(0, all_places[1]);
  const auto mean = at::zeros({size}, messages.options()).index_add(0, groups, counts * means) / total;
  const auto apart = (means - mean.index_select(0, groups)).masked_fill(counts == 0, 0.0);
  return {mean, at::zeros({size}, messages.options()).index_add(0, groups, squares + counts * apart.square())};
}

}  // namespace distdl::kernels
