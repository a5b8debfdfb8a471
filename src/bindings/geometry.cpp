// Geometry for Python: the layers and the pictures in the docs use what the operators use.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include "bindings/bindings.hpp"
#include "geometry/blocks.hpp"
#include "geometry/exchange_plan.hpp"
#include "geometry/grid.hpp"
#include "geometry/matching.hpp"
#include "geometry/resizing.hpp"
#include "geometry/sliding.hpp"
#include "geometry/window.hpp"

namespace distdl::bindings {

namespace {

using geometry::AdaptiveWindows;
using geometry::Interpolation;
using geometry::Interval;
using geometry::Shape;
using geometry::Share;
using geometry::Sliding;

Pair pair_of(const Interval& interval) { return {interval.start, interval.stop}; }
Pair pair_of(const Sliding::Widths& widths) { return {widths.left, widths.right}; }

Pairs pairs_of(const std::vector<Interval>& intervals) {
  Pairs pairs;
  for (const auto& interval : intervals) pairs.push_back(pair_of(interval));
  return pairs;
}

std::vector<std::int64_t> matched_ranks(const Shape& roots, const Shape& members, std::int64_t root_rank,
                                        bool transpose_roots, bool transpose_members) {
  const geometry::Matching matching("matching", {"roots", roots, transpose_roots},
                                    {"members", members, transpose_members});
  return matching.members_of(root_rank);
}

/// (owner's worker, start, stop) of the pieces of [start, stop) among balanced blocks: for pictures.
std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> pieces(std::int64_t extent, std::int64_t workers,
                                                                         Pair wanted) {
  std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> result;
  const auto blocks = geometry::Blocks::balanced(extent, workers);
  for (std::int64_t i = 0; i < workers; ++i) {
    const auto piece = geometry::intersect(blocks.at(i), {wanted.first, wanted.second});
    if (!piece.empty()) result.emplace_back(i, piece.start, piece.stop);
  }
  return result;
}

Interpolation interpolation(const std::string& mode, std::optional<std::int64_t> size, double factor,
                            bool align_corners, bool keeps_factor) {
  static const std::map<std::string, Interpolation::Mode> modes{{"nearest", Interpolation::Mode::nearest},
                                                                {"nearest-exact", Interpolation::Mode::nearest_exact},
                                                                {"linear", Interpolation::Mode::linear},
                                                                {"cubic", Interpolation::Mode::cubic}};
  return {modes.at(mode), {size, factor}, align_corners, keeps_factor};
}

/// The common part of the classes of resizings.
template <class Made>
py::class_<Made> bind_resizing(py::module_& m, const char* name, const char* text) {
  return py::class_<Made>(m, name, text)
      .def("__deepcopy__", &shared_by_copies, py::arg("memo"), "A copied layer shares it.")
      .def("outputs", &Made::outputs, py::arg("n"), "How many outputs there are for n inputs.")
      .def(
          "reads",
          [](const Made& self, std::int64_t n, Pair outputs) {
            return pair_of(self.reads(n, {outputs.first, outputs.second}));
          },
          py::arg("n"), py::arg("outputs"), "(start, stop) of the inputs, of n, that these outputs depend on.")
      .def(
          "aligned_blocks",
          [](const Made& self, const Shape& sizes) {
            return geometry::aligned_blocks(self, geometry::Blocks::of_sizes(sizes)).sizes();
          },
          py::arg("sizes"), "The sizes of blocks of the outputs that are cut where blocks of these sizes are.");
}

void bind_resizings(py::module_& m) {
  bind_resizing<AdaptiveWindows>(m, "AdaptiveWindows", "The windows of adaptive pooling along one dimension.")
      .def(py::init([](std::optional<std::int64_t> size, double factor) { return AdaptiveWindows{{size, factor}}; }),
           py::arg("size"), py::arg("factor") = 1.0);
  bind_resizing<Interpolation>(m, "Interpolation", "What interpolation reads along one dimension.")
      .def(py::init(&interpolation), py::arg("mode"), py::arg("size"), py::arg("factor") = 1.0,
           py::arg("align_corners") = false, py::arg("keeps_factor") = false)
      .def(
          "taps",
          [](const Interpolation& self, std::int64_t n, Pair outputs, bool in_double, bool vectorized) {
            auto taps = self.taps(n, {outputs.first, outputs.second}, {in_double, vectorized});
            return std::pair{std::move(taps.inputs), std::move(taps.weights)};
          },
          py::arg("n"), py::arg("outputs"), py::arg("in_double"), py::arg("vectorized") = false,
          "The inputs that these outputs are weighted sums of, tap by tap, and their weights.");
}

Sliding sliding(std::int64_t kernel, std::int64_t stride, std::int64_t dilation, const Pairs& blocks,
                const Pairs& outputs, const Pairs& reads) {
  if (outputs.size() != blocks.size() || reads.size() != blocks.size()) {
    throw std::invalid_argument("Sliding: there are " + std::to_string(blocks.size()) + " blocks, " +
                                std::to_string(outputs.size()) + " of outputs and " + std::to_string(reads.size()) +
                                " reads; there must be as many of each");
  }
  return {kernel, stride, dilation, box_of(blocks), box_of(outputs), box_of(reads)};
}

/// Place i along the dimension. Throws std::out_of_range, which is Python's IndexError.
std::size_t place(const Sliding& sliding, std::int64_t i) {
  if (i < 0 || i >= std::ssize(sliding.blocks)) {
    throw std::out_of_range("Sliding: there is no place " + std::to_string(i) + " among " +
                            std::to_string(sliding.blocks.size()));
  }
  return static_cast<std::size_t>(i);
}

void bind_sliding(py::module_& m) {
  py::class_<Share>(m, "Share", "The terms of a convolution along one dimension that read some of its inputs.")
      .def_property_readonly(
          "taps", [](const Share& self) { return pair_of(self.taps); }, "(start, stop) of the kernel's that are met.")
      .def_property_readonly(
          "outputs", [](const Share& self) { return pair_of(self.outputs); }, "(start, stop) of those with terms.")
      .def_readonly("padding", &Share::padding, "How many zeros the convolution that computes them has on both sides.")
      .def_readonly("first", &Share::first, "Which of its outputs is the term of the first of `outputs`.");
  const auto at = [](auto member) {
    return [member](const Sliding& self, std::int64_t i) { return pair_of((self.*member)(place(self, i))); };
  };
  py::class_<Sliding>(m, "Sliding", "A convolution kernel that slides along one dimension over blocks.")
      .def(py::init(&sliding), py::arg("kernel"), py::arg("stride"), py::arg("dilation"), py::arg("blocks"),
           py::arg("outputs"), py::arg("reads"))
      .def("__deepcopy__", &shared_by_copies, py::arg("memo"), "A copied layer shares it.")
      .def_property_readonly(
          "blocks", [](const Sliding& self) { return pairs_of(self.blocks); }, "(start, stop) of each place's inputs.")
      .def_property_readonly(
          "outputs", [](const Sliding& self) { return pairs_of(self.outputs); },
          "(start, stop) of each place's outputs.")
      .def_property_readonly(
          "reads", [](const Sliding& self) { return pairs_of(self.reads); }, "(start, stop) of what each place reads.")
      .def(
          "padding", [](const Sliding& self, std::int64_t i) { return self.padding(place(self, i)); }, py::arg("i"),
          "With how many zeros on both sides of place i's block the local layer has its outputs; None if with none.")
      .def("halo", at(&Sliding::halo), py::arg("i"), "How many inputs place i wants of the places before and after it.")
      .def("border", at(&Sliding::border), py::arg("i"),
           "How many inputs at the start and the end of place i's block the places before and after it want.")
      .def("has_halos", &Sliding::has_halos, "Whether any place wants something of another.")
      .def("fits", &Sliding::fits,
           "Whether the local layer computes all outputs, and all halos come from the blocks next to them.")
      .def(
          "share",
          [](const Sliding& self, std::int64_t i, std::int64_t start, std::int64_t stop) {
            return self.share(place(self, i), {start, stop});
          },
          py::arg("i"), py::arg("start"), py::arg("stop"),
          "What the inputs from `start` to `stop`, at an end of what place i reads and counted from its block, add.");
}

}  // namespace

void bind_geometry(py::module_& m) {
  m.def(
      "balanced_block",
      [](std::int64_t n, std::int64_t p, std::int64_t i) { return pair_of(geometry::balanced_block(n, p, i)); },
      py::arg("n"), py::arg("p"), py::arg("i"), "(start, stop) of block i of n elements over p workers.");
  m.def(
      "grid_index", [](const Shape& shape, std::int64_t rank) { return geometry::Grid(shape).index(rank); },
      py::arg("shape"), py::arg("rank"), "The row-major index of a rank in a grid of workers.");
  m.def(
      "grid_rank", [](const Shape& shape, const Shape& index) { return geometry::Grid(shape).rank(index); },
      py::arg("shape"), py::arg("index"), "The rank of a row-major index in a grid of workers.");
  m.def("matched_ranks", &matched_ranks, py::arg("roots"), py::arg("members"), py::arg("root_rank"),
        py::arg("transpose_roots") = false, py::arg("transpose_members") = false,
        "The ranks of the shape `members` that a rank of the shape `roots` broadcasts to, or that reduce to it.");
  m.def("pieces", &pieces, py::arg("extent"), py::arg("workers"), py::arg("wanted"),
        "(worker, start, stop) for every balanced block that an interval overlaps.");

  bind_resizing<geometry::Window>(m, "Window", "A sliding window along one dimension.")
      .def(py::init([](std::int64_t kernel, std::int64_t stride, Pair padding, std::int64_t dilation, bool ceil_mode) {
             return geometry::Window{kernel, stride, padding.first, padding.second, dilation, ceil_mode};
           }),
           py::arg("kernel"), py::arg("stride") = 1, py::arg("padding") = Pair{0, 0}, py::arg("dilation") = 1,
           py::arg("ceil_mode") = false)
      .def_property_readonly(
          "padding", [](const geometry::Window& window) { return Pair{window.padding_left, window.padding_right}; },
          "(left, right).")
      .def("reach", &geometry::Window::reach, "From the first to the last input of a window, these included.");
  bind_resizing<geometry::TransposedWindow>(m, "TransposedWindow",
                                            "A window of a transposed convolution along one dimension.")
      .def(py::init<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>(), py::arg("kernel"),
           py::arg("stride"), py::arg("padding"), py::arg("dilation"), py::arg("output_padding"))
      .def("reach", &geometry::TransposedWindow::reach, "How far apart the first and the last output of an input are.")
      .def("first", &geometry::TransposedWindow::first, py::arg("i"), "The first output that input i adds to.");
  bind_resizings(m);
  bind_sliding(m);
}

}  // namespace distdl::bindings
