#include "core/wire/operation_name.h"

#include <string_view>

namespace ciranda {
namespace {

constexpr std::string_view kUnnamedSuffix = ".noname";

}  // namespace

std::string unnamed(OpKind kind) {
  return std::string(op_kind_name(kind)) + std::string(kUnnamedSuffix);
}

bool is_unnamed(const RequestSpec& spec) {
  if (is_membership(spec.kind)) return true;
  const std::string_view name = spec.name;
  const std::string_view kind = op_kind_name(spec.kind);
  return name.size() == kind.size() + kUnnamedSuffix.size() && name.starts_with(kind) &&
         name.ends_with(kUnnamedSuffix);
}

std::string describe(const RequestSpec& spec) {
  const std::string kind(op_kind_name(spec.kind));
  return spec.name.empty() ? kind : kind + " '" + spec.name + "'";
}

Error about(const Error& why, const RequestSpec& spec) {
  Error error = why;
  error.text = describe(spec) + ": " + why.text;
  error.tensor = spec.name;
  return error;
}

}  // namespace ciranda
