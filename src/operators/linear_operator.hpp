// The one abstraction of this package: a linear map between distributed tensors, with its adjoint.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <array>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "agreement/agreement.hpp"
#include "agreement/input.hpp"
#include "agreement/placement.hpp"
#include "agreement/traffic.hpp"
#include "base/errors.hpp"
#include "comm/failure.hpp"
#include "kernels/below_autograd.hpp"
#include "operators/messages.hpp"

namespace distdl::operators {

// Operators are written in the words of the two folders below this one.
using namespace agreement;
using namespace kernels;

class LinearOperator;
using OperatorPtr = c10::intrusive_ptr<LinearOperator>;

/// A map A between the spaces of distributed tensors, for one global structure: everything is known but the values.
///
///     sum over ranks <A x, y> == sum over ranks <x, A* y>       A.adjoint() is A*, A.adjoint().adjoint() is A
///
/// All its ranks apply it together. It knows nothing of autograd.
class LinearOperator : public torch::CustomClassHolder {
 public:
  explicit LinearOperator(std::shared_ptr<const OperatorId> id, bool is_adjoint)
      : id_(std::move(id)), is_adjoint_(is_adjoint) {}

  /// x has this rank's input sizes. The result never shares memory with x, and x is not written. `early` says whether
  /// this rank has called send() already.
  virtual at::Tensor apply(const at::Tensor& x, EarlySend early) const = 0;
  /// Whether send() sends all that A x needs of this rank, as a few buffered sends.
  virtual bool can_send_early(const at::Tensor& /*x*/) const { return false; }
  virtual void send(const at::Tensor& /*x*/, Messages& /*messages*/) const {}
  OperatorPtr adjoint() const;
  /// The messages of apply(x). Counted once for each size of elements: they may go to thousands of ranks.
  const Traffic& traffic(const at::Tensor& x) const;
  /// The sizes of A x on this rank.
  virtual Shape result_sizes(at::IntArrayRef sizes) const = 0;

  /// Carries out a part of a call on which the ranks have agreed. If it throws, this rank is out of step.
  template <class Part>
  at::Tensor in_step(const Part& part) const {
    try {
      return part();
    } catch (const std::exception& error) {
      if (communicates()) comm::fall_out_of_step(name() + ": " + error.what());
      throw;
    }
  }

  const OperatorId& id() const { return *id_; }
  bool is_adjoint() const { return is_adjoint_; }
  Pass pass() const { return is_adjoint_ ? Pass::backward : Pass::forward; }
  bool communicates() const { return id_->rank_set.communicator != nullptr; }

  const std::string& name() const { return id_->name_of(is_adjoint_); }
  Counter& counter() const { return id_->counter(is_adjoint_); }

 protected:
  virtual OperatorPtr make_adjoint() const = 0;
  virtual Traffic count_traffic(const at::Tensor& x) const = 0;

  std::shared_ptr<const OperatorId> id_;
  bool is_adjoint_;

 private:
  /// The traffic of A and of A*, by the logarithm of the size of an element.
  struct KnownTraffic {
    static constexpr std::size_t kSizes = 5;  // 1, 2, 4, 8 and 16 bytes
    std::array<std::array<std::once_flag, kSizes>, 2> counted;
    std::array<std::array<Traffic, kSizes>, 2> traffic;
  };
  std::shared_ptr<KnownTraffic> known_ = std::make_shared<KnownTraffic>();  // A and A* have the same
};

/// Stands for any operator on a rank that is in none of its partitions. It communicates with no rank.
class Clone final : public LinearOperator {
 public:
  Clone();
  at::Tensor apply(const at::Tensor& x, EarlySend early) const override;
  Shape result_sizes(at::IntArrayRef sizes) const override { return sizes.vec(); }

 private:
  OperatorPtr make_adjoint() const override;
  Traffic count_traffic(const at::Tensor& /*x*/) const override { return {}; }
};

/// Sends all that A x needs of this rank, in a vote on the call. Empty if it cannot be sent early. Both arguments have
/// to outlive it.
comm::SendEarly early_sender(const LinearOperator& linear_operator, const at::Tensor& x);

/// An operator before the structure of its input is known: partitions and options. It makes the LinearOperator at the
/// first call, and again when the structure changes on any rank.
class Primitive {
 public:
  virtual ~Primitive() = default;
  Primitive(const Primitive&) = delete;
  Primitive& operator=(const Primitive&) = delete;

  struct Prepared {
    OperatorPtr linear_operator;
    c10::ScalarType dtype;    // of the tensor: a rank without a part of it may have passed another dtype
    Derivatives derivatives;  // of any rank's tensor; none if the dtype has none
    EarlySend early = {};     // of x
  };
  /// Agrees on the structure of x, by a vote or by that of the layer around this call. Collective over the ranks of the
  /// partitions; what is wrong on one rank is thrown on all of them. If the operator is applied to x next, x may be
  /// sent beside the vote.
  Prepared prepare(const Input& x, bool applied_next);

  /// Sends x in the vote of a layer around, if the call that follows would take no vote in this generation of the
  /// layer; empty if it cannot. Both have to outlive it.
  comm::SendEarly sender_within(const Input& x, std::int64_t generation) const;

  /// For compilers, which have to know the sizes of a result before it is computed. trace() agrees on the structure if
  /// this rank's structure has changed since the last agreement, and returns the result's sizes. prepare_traced() is
  /// the call of what was compiled: it throws on all ranks if any rank's result no longer has the sizes it was compiled
  /// for, or if some ranks are to differentiate it and others are not. Collective.
  struct Traced {
    Shape sizes;
    c10::ScalarType dtype;
  };
  Traced trace(const Structure& structure);
  Prepared prepare_traced(const Input& x, bool differentiated);

  /// Whether this rank is in any of the partitions. A rank that is not must not call prepare.
  bool active() const { return id_->rank_set.communicator != nullptr; }
  const std::string& name() const { return id_->name; }
  const agreement::OperatorId& id() const { return *id_; }
  comm::Lock lock() const { return id_->rank_set.lock(); }

 protected:
  Primitive(std::string name, RankSet rank_set, const Partition& x)
      : id_(std::make_shared<OperatorId>(std::move(name), std::move(rank_set))),
        x_(place(id_->rank_set, x)),
        agreement_(id_) {}

  /// The operator for this structure. Throws the same on all ranks, since all know the same structure.
  virtual OperatorPtr plan(const GlobalStructure& structure) = 0;

  std::size_t my_rank() const { return static_cast<std::size_t>(id_->rank_set.communicator->rank()); }

  std::shared_ptr<const OperatorId> id_;
  Placement x_;  // where the input is

 private:
  /// Makes the operator if there is none for the structure agreed on.
  void plan_if(bool changed);
  /// The dtype of the structure agreed on.
  c10::ScalarType dtype() const { return x_.of(agreement_.structure(), 0).dtype; }

  Agreement agreement_;
  OperatorPtr operator_;
  std::map<Shape, Shape> traced_;  // the sizes of the result, by the sizes of the input
};

}  // namespace distdl::operators
