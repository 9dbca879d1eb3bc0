#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/dtype.h"
#include "core/kernels/update_rule.h"
#include "core/wire/types.h"

// Internal to kernels/ and its tests: the same loops, compiled once per instruction set.
namespace ciranda::kernels {

// reduce()'s arguments as plain pointers: a file compiled for a newer instruction set must not
// instantiate inline functions of the standard library, because the linker may keep that copy for
// the whole program, and an older processor then dies far from here.
struct Reduction {
  DType dtype;
  ReduceOp op;
  double prescale;
  double postscale;
  const std::byte* const* inputs;
  std::size_t input_count;
  std::byte* const* outputs;
  std::size_t output_count;
  std::size_t count;
};

struct Casting {
  DType from_dtype;
  const std::byte* from;
  DType to_dtype;
  std::byte* to;
  std::size_t count;
  double factor;
};

// Arguments of add_arrived().
struct Adding {
  DType wire_dtype;
  bool own_rounded;
  bool result_rounded;
  double postscale;
  const std::byte* own;
  const std::byte* arrived;
  std::byte* const* outputs;
  std::size_t output_count;
  std::size_t count;
};

// Where update() saves the old values of a piece before it changes them, see StepJournal.
struct Saving {
  std::uint64_t* at;    // gets twice the first byte of a piece, plus one when its values are saved
  std::uint64_t begin;  // byte of the bucket at which the update begins
  std::byte* values;    // one piece of the parameters, then of each array of state
};
inline constexpr std::size_t kSavedBytes = 1024;  // of a piece: whole vectors of every format

// Arguments of update(), and the scalars that follow from the step.
struct Updating {
  UpdateRule rule;
  DType dtype;
  bool fresh_state;
  double gradient_scale;
  double step_size;              // lr, corrected for Adam's bias or decayed as Adagrad's
  double bias_correction2_sqrt;  // Adam's
  double coupled_decay;          // weight decay that is added to the gradient
  double kept;                   // part of the parameter that decoupled weight decay leaves
  double initial_state;          // of each element, if fresh_state
  const std::byte* const* gradients;
  std::size_t gradient_count;
  std::byte* const* parameters;
  std::size_t parameter_count;
  std::byte* const* states;
  std::byte* const* gradient_outputs;
  std::size_t gradient_output_count;
  std::size_t count;
  const Saving* saving = nullptr;  // null: nothing is saved
};
Updating updating(const UpdateRule& rule, const UpdateArgs& args);

struct Squaring {
  DType dtype;
  const std::byte* const* inputs;
  std::size_t input_count;
  std::size_t count;
};

struct Loops {
  void (*reduce)(const Reduction& reduction);
  void (*cast)(const Casting& casting);
  void (*add_arrived)(const Adding& adding);
  // Copies and leaves the caches as they are.
  void (*copy_past_caches)(std::byte* to, const std::byte* from, std::size_t bytes);
  void (*update)(const Updating& updating);
  double (*sum_of_squares)(const Squaring& squaring);
};
extern const Loops kPortableLoops;
extern const Loops kAvx2Loops;
extern const Loops kAvx512Loops;

struct Variant {
  const char* name;
  bool (*available)();  // true if this processor can run it
  const Loops* loops;
};

// Best first. The last is "portable", which is always available and the reference for the bits.
std::span<const Variant> variants();
// Returns the first available variant.
const Variant& chosen_variant();

}  // namespace ciranda::kernels
