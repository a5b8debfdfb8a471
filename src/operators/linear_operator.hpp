// The one abstraction of this package: a linear map between distributed tensors, with its adjoint.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>

#include "operators/placement.hpp"
#include "operators/structure.hpp"

namespace distdl::operators {

class LinearOperator;
using OperatorPtr = c10::intrusive_ptr<LinearOperator>;

/// A map A between the spaces of distributed tensors, for one global structure: everything is known but the values.
///
///     sum over ranks <A x, y> == sum over ranks <x, A* y>       A.adjoint() is A*, A.adjoint().adjoint() is A
///
/// All ranks of the site apply it together. It knows nothing of autograd.
class LinearOperator : public torch::CustomClassHolder {
 public:
  explicit LinearOperator(std::shared_ptr<const Site> site, bool is_adjoint)
      : site_(std::move(site)), is_adjoint_(is_adjoint) {}

  /// x has this rank's input sizes. The result never shares memory with x, and x is not written.
  virtual at::Tensor apply(const at::Tensor& x) const = 0;
  virtual OperatorPtr adjoint() const = 0;

  const Site& site() const { return *site_; }
  bool is_adjoint() const { return is_adjoint_; }
  bool communicates() const { return site_->scope.communicator != nullptr; }

  /// As profilers show it.
  std::string text() const { return "distdl::" + site_->name + (is_adjoint_ ? " adjoint" : ""); }

 protected:
  std::shared_ptr<const Site> site_;
  bool is_adjoint_;
};

/// Every operator, on a rank that is in none of its partitions. It communicates with nobody.
class Clone final : public LinearOperator {
 public:
  Clone();
  at::Tensor apply(const at::Tensor& x) const override;
  OperatorPtr adjoint() const override;
};

/// What a rank passes to an operator: a tensor, or the reason why it has none.
struct Input {
  at::Tensor tensor;
  std::string error;

  Structure structure() const;
  bool requires_grad() const;
};

/// An operator before the structure of its input is known: partitions and options. It makes the LinearOperator at the
/// first call, and again when the structure changes on any rank.
class Primitive {
 public:
  virtual ~Primitive() = default;
  Primitive(const Primitive&) = delete;
  Primitive& operator=(const Primitive&) = delete;

  struct Prepared {
    OperatorPtr linear_operator;
    c10::ScalarType dtype;  // of the tensor: a rank that has no part of it may have passed another one
    bool requires_grad;     // on any rank, and the dtype has derivatives
  };
  /// Agrees on the structure of x. Collective over the ranks of the partitions; what is wrong on one rank is thrown
  /// on all of them.
  Prepared prepare(const Input& x);

  /// Whether this rank is in any of the partitions. A rank that is not must not call prepare.
  bool active() const { return site_->scope.communicator != nullptr; }
  const std::string& name() const { return site_->name; }

 protected:
  Primitive(std::string name, Scope scope, const Partition& x)
      : site_(std::make_shared<Site>(std::move(name), std::move(scope))),
        x_(place(site_->scope, x)),
        agreement_(site_) {}

  /// The operator for this structure. Throws the same on all ranks, since all know the same structure.
  virtual OperatorPtr plan(const GlobalStructure& structure) = 0;

  std::size_t my_rank() const { return static_cast<std::size_t>(site_->scope.communicator->rank()); }

  std::shared_ptr<const Site> site_;
  Placement x_;  // where the input is

 private:
  Agreement agreement_;
  OperatorPtr operator_;
};

}  // namespace distdl::operators
