#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/ps/decide/model.h"
#include "core/wire/codec.h"

namespace ciranda::ps {

// Encodes and decodes a model, and the parts of it that messages contain too.

inline constexpr std::size_t kModelBytesMax = std::size_t{1} << 30;

// Appends the bytes of `model`, which check() must have accepted.
void encode(const Model& model, std::vector<std::byte>& out);
// Accepts arbitrary bytes. kMalformed: they do not decode. A model that check() refuses returns
// check()'s error.
Result<Model> decode_model(std::span<const std::byte> bytes);

inline constexpr std::size_t kRuleBytes = 1 + 10 * 8 + 1;
void write_rule(Writer& out, const kernels::UpdateRule& rule);
kernels::UpdateRule read_rule(Reader& in);

// Truncates `text` to `max` bytes.
void write_text(Writer& out, std::string_view text, std::size_t max);
std::string read_text(Reader& in, const char* field, std::size_t max);

}  // namespace ciranda::ps
