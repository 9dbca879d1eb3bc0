#pragma once

#include <string>

#include "core/base/result.h"
#include "core/wire/messages.h"

namespace ciranda {

// How operations are named among ranks and in sentences for users.

// The name under which unnamed operations of a kind are negotiated: "allreduce.noname".
std::string unnamed(OpKind kind);
// Whether the operation goes by unnamed(), or is a join or a leave, which have no name.
bool is_unnamed(const RequestSpec& spec);

// "allreduce 'x'"; the kind alone if the name is empty.
std::string describe(const RequestSpec& spec);
// `why` with describe(spec) before its text, and spec.name as its tensor.
Error about(const Error& why, const RequestSpec& spec);

}  // namespace ciranda
