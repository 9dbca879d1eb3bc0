#pragma once

#include <string>

#include "core/base/result.h"
#include "core/wire/messages.h"

namespace ciranda {

// Names of operations, as ranks negotiate them and as users read them.

// Returns the name under which unnamed operations of `kind` are negotiated: "allreduce.noname".
std::string unnamed(OpKind kind);
// Returns true if the operation has the name unnamed(), or is a membership operation, which has no
// name.
bool is_unnamed(const RequestSpec& spec);

// Returns "allreduce 'x'", or the kind alone if the name is empty.
std::string describe(const RequestSpec& spec);
// Returns `why` with describe(spec) before its text and spec.name as its tensor.
Error about(const Error& why, const RequestSpec& spec);

}  // namespace ciranda
