#include "kernels/box_view.hpp"

#include <ATen/ATen.h>

namespace distdl::kernels {

at::Tensor view_of(const at::Tensor& whole, const geometry::Box& box) {
  auto sizes = whole.sizes().vec();
  auto offset = whole.storage_offset();
  for (std::size_t d = 0; d < box.size(); ++d) {
    sizes[d] = box[d].size();
    offset += box[d].start * whole.strides()[d];
  }
  return whole.sizes() == sizes ? whole : whole.as_strided(sizes, whole.strides(), offset);  // all dimensions at once
}

}  // namespace distdl::kernels
