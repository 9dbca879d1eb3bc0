#include <torch/csrc/utils/pybind.h>

#include <array>

#include "bindings/bindings.h"
#include "ciranda/torch/tensor/error.h"

namespace ciranda {
namespace {

// Returns the class of ciranda.errors for an ErrorCode.
const char* class_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kLimit:
      return "InvalidArgumentError";
    case ErrorCode::kNotInitialized:
      return "NotInitializedError";
    case ErrorCode::kDuplicateName:
      return "DuplicateNameError";
    case ErrorCode::kMismatch:
      return "MismatchError";
    case ErrorCode::kRankLost:
    case ErrorCode::kRankLeft:
      return "RankLostError";
    case ErrorCode::kShutdown:
      return "ShutdownError";
    case ErrorCode::kForked:
      return "ForkedError";
    case ErrorCode::kTimeout:
      return "TimeoutError";
    case ErrorCode::kUnsupported:
      return "UnsupportedError";
    case ErrorCode::kMalformed:
    case ErrorCode::kSystem:
      break;
  }
  return "CirandaError";
}

}  // namespace

void bind_errors(pybind11::module_&) {
  pybind11::register_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) std::rethrow_exception(raised);
    } catch (const Exception& exception) {
      const Error& error = exception.error();
      // The rank may be lost because it or this rank was interrupted. If a signal's handler raises
      // in this rank, its exception replaces this one.
      if (error.code == ErrorCode::kRankLost && Py_MakePendingCalls() != 0) return;
      const auto module = pybind11::module_::import("ciranda.errors");
      const pybind11::object type = module.attr(class_name(error.code));
      pybind11::object value = type(error.text);
      value.attr("rank") = error.rank >= 0 ? pybind11::cast(error.rank) : pybind11::none();
      value.attr("tensor") = error.tensor;
      if (error.code == ErrorCode::kRankLeft) value.attr("left") = true;
      PyErr_SetObject(type.ptr(), value.ptr());
    }
  });
}

}  // namespace ciranda
