#include "core/ps/decide/model_codec.h"

#include "core/kernels/update_rule.h"
#include "core/wire/types.h"

namespace ciranda::ps {
namespace {

constexpr int kAllRuleFlags = (1 << std::size(kernels::kRuleFlags)) - 1;

void write_mode(Writer& out, const Mode& mode) {
  out.u8(static_cast<std::uint8_t>(mode.kind));
  out.u8(static_cast<std::uint8_t>(mode.policy));
  out.varint(mode.max_staleness);
  out.varint(mode.staleness);
  out.varint(mode.backup_workers);
}
Mode read_mode(Reader& in) {
  Mode mode;
  mode.kind = static_cast<ModeKind>(in.u8("mode.kind", kModeKindCount - 1));
  mode.policy = static_cast<StalePolicy>(in.u8("mode.policy", kStalePolicyCount - 1));
  mode.max_staleness = in.varint("mode.max_staleness", UINT64_MAX);
  mode.staleness = in.varint("mode.staleness", UINT64_MAX);
  mode.backup_workers = static_cast<std::uint32_t>(in.varint("mode.backup_workers", kRanksMax));
  return mode;
}

void read_slot(Reader& in, Slot& slot) {
  slot.name = read_text(in, "slot.name", kNameBytesMax);
  slot.shape.resize(in.count("slot.dimensions", kDimsMax, 1));
  for (std::int64_t& size : slot.shape) {
    size =
        static_cast<std::int64_t>(in.varint("slot.size", static_cast<std::uint64_t>(kElementsMax)));
  }
}

}  // namespace

void write_text(Writer& out, std::string_view text, std::size_t max) {
  text = text.substr(0, max);
  out.varint(text.size());
  out.text(text);
}
std::string read_text(Reader& in, const char* field, std::size_t max) {
  const std::size_t size = in.count(field, max, 1);
  return std::string(in.text(field, size));
}

void write_rule(Writer& out, const kernels::UpdateRule& rule) {
  out.u8(static_cast<std::uint8_t>(rule.kind));
  for (const auto& value : kernels::kRuleValues) out.f64(rule.*value.member);
  int flags = 0;
  for (std::size_t i = 0; i < std::size(kernels::kRuleFlags); ++i) {
    if (rule.*kernels::kRuleFlags[i].member) flags |= 1 << i;
  }
  out.u8(static_cast<std::uint8_t>(flags));
}
kernels::UpdateRule read_rule(Reader& in) {
  kernels::UpdateRule rule;
  rule.kind = static_cast<kernels::RuleKind>(
      in.u8("rule.kind", static_cast<std::uint8_t>(std::size(kernels::kRules) - 1)));
  for (const auto& value : kernels::kRuleValues) rule.*value.member = in.f64("rule.value");
  const int flags = in.u8("rule.flags", kAllRuleFlags);
  for (std::size_t i = 0; i < std::size(kernels::kRuleFlags); ++i) {
    rule.*kernels::kRuleFlags[i].member = (flags >> i & 1) != 0;
  }
  return rule;
}

void encode(const Model& model, std::vector<std::byte>& out) {
  Writer writer(out);
  write_mode(writer, model.mode);
  writer.varint(model.tables.size());
  for (const Table& table : model.tables) {
    writer.u8(static_cast<std::uint8_t>(table.dtype));
    write_rule(writer, table.rule);
    writer.varint(table.slots.size());
    for (const Slot& slot : table.slots) {
      write_text(writer, slot.name, kNameBytesMax);
      writer.varint(slot.shape.size());
      for (const std::int64_t size : slot.shape) writer.varint(static_cast<std::uint64_t>(size));
    }
  }
  writer.varint(model.row_tables.size());
  for (const RowTable& table : model.row_tables) {
    write_text(writer, table.name, kNameBytesMax);
    writer.varint(table.rows);
    writer.varint(table.columns);
    write_rule(writer, table.rule);
    writer.u8(table.given ? 1 : 0);
    writer.f64(table.deviation);
    writer.u64(table.seed);
  }
}

Result<Model> decode_model(std::span<const std::byte> bytes) {
  Reader in(bytes);
  Model model;
  model.mode = read_mode(in);
  model.tables.resize(in.count("model.tables", kTablesMax, 2 + kRuleBytes));
  for (Table& table : model.tables) {
    table.dtype = static_cast<DType>(in.u8("table.dtype", kDTypeCount - 1));
    table.rule = read_rule(in);
    table.slots.resize(in.count("table.slots", kSlotsMax, 2));
    for (Slot& slot : table.slots) read_slot(in, slot);
  }
  model.row_tables.resize(in.count("model.row_tables", kRowTablesMax, 20 + kRuleBytes));
  for (RowTable& table : model.row_tables) {
    table.name = read_text(in, "rows.name", kNameBytesMax);
    table.rows = in.varint("rows.rows", kRowsMax);
    table.columns = static_cast<std::uint32_t>(in.varint("rows.columns", kColumnsMax));
    table.rule = read_rule(in);
    table.given = in.u8("rows.given", 1) != 0;
    table.deviation = in.f64("rows.deviation");
    table.seed = in.u64("rows.seed");
  }
  if (in.ok() && in.remaining() > 0) in.fail("model", "goes on after its end");
  if (!in.ok()) return in.error();
  CIRANDA_TRY(check(model));
  return model;
}

}  // namespace ciranda::ps
