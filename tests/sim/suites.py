"""Planted mistakes, by the part of core that they are in, and the tests that shall find them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    old: str  # occurs once in core, whatever its line breaks and indentation
    new: str


@dataclass(frozen=True)
class Suite:
    """Mutants of one part of core, and the tests that shall find them."""

    name: str
    tests: tuple[str, ...]  # below tests/cpp; may hold *
    mutants: tuple[Mutant, ...]
    filter: str = "*"


_OF_NEGOTIATION = (
    Mutant(
        "runs_when_one_rank_is_missing",
        "else if (attendance_.completes(*op))",
        "else if (op->missing <= 1)",
    ),
    Mutant(
        "compares_no_specs",
        "if (request.spec != op->spec && *request.spec != *op->spec)",
        "if (false)",
    ),
    Mutant(
        "ignores_that_a_rank_left",
        "if (op->group().contains(from))",
        "if (false)",
    ),
    Mutant(
        "lets_the_departed_speak",
        "if (attendance_.has_left(from))",
        "if (false)",
    ),
    Mutant(
        "waits_for_the_departed",
        "if (std::any_of(departed_.begin(), departed_.end(), is_member))",
        "if (false)",
    ),
    Mutant(
        "takes_a_second_submission_for_the_first",
        "} else if (op->contributions[member].has_value()) {",
        "} else if (false) {",
    ),
    Mutant(
        "gives_no_index_to_an_error",
        "response.verdict = Response::Verdict::kError;\n  response.index = next_index_++;",
        "response.verdict = Response::Verdict::kError;\n  response.index = next_index_;",
    ),
    Mutant(
        "allows_a_root_beyond_the_last_rank",
        "|| op.group().contains(root)",
        "|| root <= op.group().ranks.back() + 1",
    ),
    Mutant(
        "asks_the_wrong_submission_to_come_again",
        "response.resubmit_token = token;",
        "",
    ),
    Mutant(
        "does_not_renew_an_entry_used_by_number",
        "return found == by_id_.end() ? nullptr : renew(found->second);",
        "return found == by_id_.end() ? nullptr : &*found->second;",
    ),
    Mutant(
        "evicts_the_entry_used_last",
        "order_.splice(order_.begin(), order_, entry);",
        "order_.splice(order_.end(), order_, entry);",
    ),
    Mutant(
        "uses_an_evicted_number_again",
        "by_id_.erase(entry->id);",
        "by_id_.erase(entry->id);\n  next_id_ = entry->id;",
    ),
    Mutant(
        "keeps_the_number_of_an_evicted_spec",
        "by_id_.erase(entry->id);\n  by_spec_.erase(entry->spec.get());",
        "by_id_.erase(entry->id);",
    ),
    Mutant(
        "ignores_the_occurrence",
        "const auto place = place_of(name.pending, occurrence);\n"
        "  return place != name.pending.end() && (*place)->occurrence == occurrence"
        " ? *place : nullptr;",
        "return occurrence != 0 && !name.pending.empty() ? name.pending.front() : nullptr;",
    ),
    Mutant(
        "keeps_a_finished_operation_pending",
        "name.pending.erase(place);",
        "",
    ),
    Mutant(
        "fuses_different_dtypes",
        "|| op.dtype != dtype ",
        "",
    ),
    Mutant(
        "fuses_different_scales",
        "op.prescale == spec.prescale && op.postscale == spec.postscale",
        "op.prescale == spec.prescale",
    ),
    Mutant(
        "fuses_across_an_operation_that_stands_alone",
        "open_.clear();",
        "",
    ),
    Mutant(
        "fuses_arena_tensors_of_two_operations",
        "if (spec.in_arena) return add_bucket(position, response);",
        "",
    ),
    Mutant(
        "plans_operations_that_failed",
        "if (response.verdict != Response::Verdict::kRun) continue;",
        "if (response.verdict == Response::Verdict::kResubmit) continue;",
    ),
    Mutant(
        "keeps_the_rows_of_the_request_before",
        "own.rows.clear();",
        "",
    ),
    Mutant(
        "keeps_the_arena_place_of_the_request_before",
        "own.arena = {};",
        "",
    ),
    Mutant(
        "accepts_bytes_after_the_end",
        "if (in.ok() && in.remaining() != 0)",
        "if (false)",
    ),
    Mutant(
        "reports_a_host_when_one_rank_is_missing",
        "if (complete(submitted)) complete_here_.push_back",
        "if (submitted.ranks + 1 >= submitted.members) complete_here_.push_back",
    ),
    Mutant(
        "calls_ready_when_one_host_is_missing",
        "if (++reported.hosts < reported.with_members) return {};",
        "if (++reported.hosts < reported.with_members - 1) return {};",
    ),
    Mutant(
        "lets_a_goodbye_overtake_what_was_said_before",
        "review(tick, /*all=*/true);\n    send_alone();",
        "",
    ),
    Mutant(
        "orders_a_goodbye_before_what_was_reported",
        "review(0, /*all=*/true);\n    order_complete();",
        "",
    ),
    Mutant(
        "holds_for_ever",
        "|| tick - since_tick >= patience_",
        "",
    ),
    Mutant(
        "numbers_no_aggregated_run",
        "Response& response = out.emplace_back();\n  response.index = next_index_++;",
        "Response& response = out.emplace_back();\n  response.index = next_index_;",
    ),
)


_OF_GROUPS_AND_JOIN = (
    Mutant(
        "keeps_one_name_for_all_groups",
        "try_emplace({group->id, std::string(name)})",
        "try_emplace({kWorldGroup, std::string(name)})",
    ),
    Mutant(
        "uses_the_number_of_a_removed_group_again",
        "groups_.erase(at);",
        "groups_.erase(at);\n  next_id_ = id;",
    ),
    Mutant(
        "keeps_the_specs_of_a_removed_group",
        "cache_.evict_group(spec.removes);",
        "",
    ),
    Mutant(
        "removes_a_group_in_which_something_waits",
        "if (const PendingOp* other = pending.oldest_of(id))",
        "if (const PendingOp* other = pending.oldest_of(id); false)",
    ),
    Mutant(
        "adds_the_same_group_twice",
        "if (const auto same = groups.of_ranks(members))",
        "if (const auto same = members.empty() ? groups.world() : nullptr)",
    ),
    Mutant(
        "ends_what_a_departed_rank_has_no_part_in",
        "if (op->group().contains(from))",
        "if (true)",
    ),
    Mutant(
        "refuses_groups_without_a_departed_rank",
        "if (std::any_of(departed_.begin(), departed_.end(), is_member))",
        "if (!departed_.empty())",
    ),
    Mutant(
        "does_not_go_on_when_a_rank_joins",
        "if (op != &join && attendance_.completes(*op))",
        "if (false)",
    ),
    Mutant(
        "waits_for_those_who_have_joined_before",
        "if (!op.contributions[index] && !contains(joined_, rank))",
        "if (!op.contributions[index])",
    ),
    Mutant(
        "never_starts_again_after_a_join",
        "joined_.clear();\n  is_full_ = true;",
        "is_full_ = true;",
    ),
    Mutant(
        "keeps_ranks_joined_when_one_leaves",
        "departed_.push_back(rank);\n  joined_.clear();",
        "departed_.push_back(rank);",
    ),
    Mutant(
        "lets_a_joined_rank_submit",
        "if (contains(joined_, from)) return refused",
        "if (false) return refused",
    ),
    Mutant(
        "takes_the_maximum_without_a_joined_rank",
        "return spec.op == ReduceOp::kSum || spec.op == ReduceOp::kAverage;",
        "return true;",
    ),
    Mutant(
        "gathers_without_a_joined_rank",
        "if (!joined.empty() && !goes_on_without(*op.spec))",
        "if (false)",
    ),
    Mutant(
        "does_not_say_who_takes_no_part",
        "response.joined = std::move(joined);",
        "",
    ),
    Mutant(
        "does_not_say_who_joined_last",
        "out.back().last_joined = from;",
        "",
    ),
    Mutant(
        "fuses_different_groups",
        "if (op.group != response.group || op.joined",
        "if (op.joined",
    ),
    Mutant(
        "fuses_with_and_without_a_joined_rank",
        "if (op.group != response.group || op.joined != response.joined)",
        "if (op.group != response.group)",
    ),
    Mutant(
        "does_not_say_whose_contributions_are_ready",
        "if (submitted.members < local_ranks().size())",
        "if (false)",
    ),
    Mutant(
        "reads_members_without_gaps",
        "next = rank + 1;\n  }\n}\n\n}  // namespace",
        "next = rank;\n  }\n}\n\n}  // namespace",
    ),
)


_OF_ROOTS_AND_MESSAGES = (
    Mutant(
        "asks_a_gather_for_no_rows",
        ": moves_as == OpKind::kAlltoall",
        ": spec.kind == OpKind::kAlltoall",
    ),
    Mutant(
        "scatters_rows_beyond_the_limit",
        "if (takes_rows(spec.kind) && !rows_fit(spec, rows))",
        "if (spec.kind == OpKind::kAllgather && !rows_fit(spec, rows))",
    ),
    Mutant(
        "blames_any_rank_for_the_splits_of_a_scatter",
        "spec.kind == OpKind::kScatter && rank == spec.root)",
        "spec.kind == OpKind::kScatter)",
    ),
    Mutant(
        "reduces_to_a_root_that_is_no_member",
        "if (!facts_of(op.spec->kind).has_root || ",
        "if (op.spec->kind != OpKind::kBroadcast || ",
    ),
    Mutant(
        "tells_backends_of_a_gather",
        "FusedOp& op = ops_.emplace_back();\n    op.kind = runs_as(spec.kind);",
        "FusedOp& op = ops_.emplace_back();\n    op.kind = spec.kind;",
    ),
    Mutant(
        "fuses_no_messages",
        "if (op.kind != runs_as(spec.kind) ||",
        "if (op.kind != spec.kind ||",
    ),
    Mutant(
        "sends_without_memory",
        "if (is_pair(op.spec->group)) return region_fault(op);",
        "",
    ),
    Mutant(
        "names_who_receives_before_who_sends",
        "const auto [from, to] = pair_of(spec.group);",
        "const auto [to, from] = pair_of(spec.group);",
    ),
    Mutant(
        "has_pairs_of_ranks_that_there_are_not",
        "if (!is_in_world(pair, world()->size())) return nullptr;",
        "",
    ),
    Mutant(
        "has_only_pairs_whose_lower_rank_sends",
        "{std::min(pair.from, pair.to), std::max(pair.from, pair.to)}",
        "{pair.from, pair.to}",
    ),
    Mutant(
        "takes_a_pair_for_a_process_set",
        "return at != groups_.end() ? *at : nullptr;\n}\n\nbool",
        "if (at != groups_.end()) return *at;\n"
        "  for (const auto& [id, pair] : pairs_)\n"
        "    if (pair->ranks == ranks) return pair;\n"
        "  return nullptr;\n}\n\nbool",
    ),
    Mutant(
        "lets_a_pair_be_removed",
        "if (groups.find(id) == nullptr)",
        "if (!is_pair(id) && groups.find(id) == nullptr)",
    ),
    Mutant(
        "loses_what_a_ready_rank_provides",
        'part.arena.offset = in.varint("ready.offset", UINT64_MAX);',
        'in.varint("ready.offset", UINT64_MAX);',
    ),
    Mutant(
        "fuses_different_roots",
        " ||\n        op.root != spec.root)",
        ")",
    ),
)


_OF_PROOF = (
    Mutant(
        "believes_any_client",
        "if (!equal_in_constant_time(client, input_.bytes()))",
        "if (false)",
    ),
    Mutant(
        "believes_any_server",
        "                              proof)) {",
        "                              proof) && false) {",
    ),
    Mutant(
        "takes_a_rank_of_another_epoch",
        "if (hello.epoch != keys_.epoch)",
        "if (false)",
    ),
    Mutant(
        "answers_whoever_looks_for_another_rank",
        "if (hello.to != side_.self || wants_server != side_.is_server)",
        "if (wants_server != side_.is_server)",
    ),
    Mutant(
        "takes_a_worker_for_a_rank",
        "if (hello.to != side_.self || wants_server != side_.is_server)",
        "if (hello.to != side_.self)",
    ),
    Mutant(
        "takes_its_own_bytes_back",
        "if (hello.from == side_.self && !side_.is_server)",
        "if (false)",
    ),
    Mutant(
        "ignores_the_seal_of_a_frame",
        'if (!equal_in_constant_time(seal_of(key_, "", sealed), seal))',
        "if (false)",
    ),
    Mutant(
        "counts_no_frames",
        '  if (counter != counter_) {\n    return broken("was due',
        '  if (false) {\n    return broken("was due',
    ),
    Mutant(
        "ignores_the_seal_of_a_header",
        "if (!equal_in_constant_time(seal_of(key_, kDataLabel, sealed),",
        "if (false && !equal_in_constant_time(seal_of(key_, kDataLabel, sealed),",
    ),
    Mutant(
        "counts_no_headers",
        '  if (counter != counter_) {\n    return malformed("data header',
        '  if (false) {\n    return malformed("data header',
    ),
    Mutant(
        "believes_any_payload",
        "if (equal_in_constant_time(mac_.tag(counter_ - 1, payload), due_)) return {};",
        "return {};",
    ),
    Mutant(
        "gives_all_messages_one_number",
        "mac_.tag(counter_, payload)",
        "mac_.tag(0, payload)",
    ),
    Mutant(
        "compares_half_of_the_settings",
        "while (!settings.empty() || !of_rank_0.empty())",
        "while (!settings.empty() && !of_rank_0.empty())",
    ),
    Mutant(
        "seats_two_ranks_in_one_place",
        "if (own != kNoRank)",
        "if (false)",
    ),
    Mutant(
        "lets_an_older_process_replace_a_newer",
        "if (client.incarnation > earlier.incarnation)",
        "if (client.incarnation != earlier.incarnation)",
    ),
    Mutant(
        "admits_one_caller_too_many",
        "if (then_ns - now_ns > allowance_ns_) return false;",
        "if (then_ns - now_ns > allowance_ns_ + turn_ns_) return false;",
    ),
    Mutant(
        "gives_no_turn_back",
        "full_ns_ -= turn_ns_;",
        "full_ns_ -= 0;",
    ),
)


_OF_RELAY = (
    Mutant(
        "lets_a_host_speak_for_another",
        "if (std::find(there.begin(), there.end(), from) == there.end())",
        "if (false)",
    ),
    Mutant(
        "keeps_a_failure_to_itself",
        "if (at_centre()) forward_failure(frame.payload, connection);",
        "",
    ),
    Mutant(
        "takes_more_than_there_is_room_for",
        "for (; frames_max > 0; --frames_max)",
        "for (;; --frames_max)",
    ),
    Mutant(
        "has_always_room",
        "return !connection || connection->queued_bytes() < kQueuedBytesMax;",
        "return true;",
    ),
    Mutant(
        "stops_sending_at_the_first_lost_host",
        "    result = std::move(sent);",
        "    return sent;",
    ),
    Mutant(
        "hears_no_last_words",
        "if (!frame || !frame.value() || !open(i, *frame.value(), take)) break;",
        "break;",
    ),
    Mutant(
        "names_another_host",
        "    lost_host_ = host_of(i);\n    if (!connections_[i]) continue;",
        "    if (!connections_[i]) continue;",
    ),
    Mutant(
        "takes_the_reader_for_the_speaker",
        "return take(from, bytes);",
        "return take(static_cast<Rank>(host_), bytes);",
    ),
)


_OF_RING = (
    Mutant(
        "sends_before_it_has_received",
        ".piece = output(layout, sent), .after_receives = turn.round_ago};",
        ".piece = output(layout, sent), .after_receives = 0};",
    ),
    Mutant(
        "overwrites_scratch_that_has_not_left",
        ".after_sends = to_scratch && round >= 2 ? turn.round_ago : 0};",
        ".after_sends = 0};",
    ),
    Mutant(
        "uses_one_block_of_scratch",
        "static_cast<std::uint64_t>(round % 2)",
        "static_cast<std::uint64_t>(round % 1)",
    ),
    Mutant(
        "reduces_a_round_too_few",
        "const bool reducing = reduces(kind) && round < n - 1;",
        "const bool reducing = reduces(kind) && round < n - 2;",
    ),
    Mutant(
        "scales_in_every_round",
        "const bool completes = reducing && round == n - 2;",
        "const bool completes = reducing;",
    ),
    Mutant(
        "reads_an_input_that_is_not_there_yet",
        "step.receive.after_chunks = index + 1 + layout.segments;",
        "step.receive.after_chunks = 0;",
    ),
    Mutant(
        "sends_an_input_that_is_not_there_yet",
        "step.send.after_chunks = reducing ? index + 1 : 0;",
        "step.send.after_chunks = 0;",
    ),
    Mutant(
        "reduces_with_the_block_that_leaves",
        "step.receive.own = input(layout, received);",
        "step.receive.own = input(layout, sent);",
    ),
    Mutant(
        "closes_the_chain_to_a_ring",
        "if (next != what.root)",
        "if (true)",
    ),
    Mutant(
        "passes_on_before_it_has_arrived",
        ".after_receives = is_root ? 0 : index + 1};",
        ".after_receives = 0};",
    ),
    Mutant(
        "finishes_a_block_at_its_neighbour",
        "layout.collective.kind == OpKind::kReducescatter ? layout.self - 1 : layout.self;",
        "layout.self;",
    ),
)


_OF_PARAMETER_SERVER = (
    Mutant(
        "applies_a_push_twice",  # I21
        "if (push.seq <= decided_.latest(push.worker)) return repeat_answer(",
        "if (false) return repeat_answer(",
    ),
    Mutant(
        "forgets_what_an_earlier_life_has_pushed",  # I21
        "welcome.decided = shard_->decided(message.worker);",
        "",
    ),
    Mutant(
        "answers_again_what_is_held",  # I24
        "if (gate_.holds(push.worker, push.seq)) return;",
        "",
    ),
    Mutant(
        "counts_the_dead",  # I24
        "member.presence = Presence::kGone;",
        "",
    ),
    Mutant(
        "counts_the_silent",  # I27
        "at(worker).presence = Presence::kSilent;",
        "",
    ),
    Mutant(
        "wakes_nobody_when_one_leaves",  # I27
        "at(worker).all = nullptr;\n  finish_round(acks);\n  release(acks);",
        "at(worker).all = nullptr;",
    ),
    Mutant(
        "lets_everybody_go_on",  # I24
        "const bool goes_on = gate_.may_go_on(push.clock);",
        "const bool goes_on = true;",
    ),
    Mutant(
        "lets_one_go_too_far",  # I24
        "clock - slowest <= mode_.staleness;",
        "clock - slowest <= mode_.staleness + 1;",
    ),
    Mutant(
        "counts_pushes_for_itself",  # I24
        "gate_.advance(worker, push.clock);\n  const std::uint64_t staleness",
        "gate_.advance(worker, gate_.clock(worker) + 1);\n  const std::uint64_t staleness",
    ),
    Mutant(
        "takes_a_push_before_the_answer",  # I26
        "if (waits) return refused_push(",
        "if (false) return refused_push(",
    ),
    Mutant(
        "scales_by_one_too_much",  # I22
        "std::max<std::uint64_t>(staleness, 1)",
        "std::max<std::uint64_t>(staleness + 1, 1)",
    ),
    Mutant(
        "drops_at_the_bound",  # I24
        "staleness > mode.max_staleness)) {",
        "staleness >= mode.max_staleness)) {",
    ),
    Mutant(
        "takes_the_late_into_the_round",  # I24
        "if (push.base < version_) {",
        "if (false) {",
    ),
    Mutant(
        "averages_over_all_workers",  # I22
        "1.0 / static_cast<double>(pushes.size())",
        "1.0 / static_cast<double>(memory_.size())",
    ),
    Mutant(
        "waits_for_one_backup_less",  # I24
        "missing > mode_.backup_workers) return {};",
        "missing > mode_.backup_workers + 1) return {};",
    ),
    Mutant(
        "waits_for_those_who_wait_elsewhere",  # I27
        "!member.parked && member.counts() && member.clock < clock;",
        "!member.parked && member.counts();",
    ),
    Mutant(
        "lets_the_returned_begin_anew",  # I24
        "if (others != UINT64_MAX) member.clock = others;",
        "member.clock = 0;",
    ),
    Mutant(
        "gives_old_parameters_to_whom_it_held",  # I22
        "ack.version = pull(ack.worker);",
        "ack.version = version_;",
    ),
    Mutant(
        "reads_gradients_where_they_were",  # I22
        "gradients.push_back(at(push.worker).gradients);",
        "gradients.push_back(at(push.worker).all);",
    ),
    Mutant(
        "keeps_what_has_no_gradient_from_the_others",  # I22
        "  copy_range(piece, next, piece.end, targets);",
        "",
    ),
    Mutant(
        "hears_an_older_life",  # I25
        "if (message.life <= known.life && !returns) {",
        "if (message.life == known.life && !returns) {",
    ),
    Mutant(
        "lets_two_lives_live",  # I25
        "if (const Caller before = entry.value().replaces; before >= 0) {",
        "if (const Caller before = entry.value().replaces; before < -1) {",
    ),
    Mutant(
        "takes_the_parameters_of_whoever_comes",  # I24
        "std::ranges::find(workers_, false, &Member::left);",
        "std::ranges::find_if(workers_, [](const Member& each) { return each.caller >= 0; });",
    ),
    Mutant(
        "counts_a_lease_from_the_first_word",  # I24
        "lease.heard_ns = now_ns;",
        "",
    ),
    Mutant(
        "lets_a_second_process_return",  # I25
        "message.life == known.life && message.process == known.process;",
        "message.life == known.life;",
    ),
    Mutant(
        "waits_for_ever_for_who_does_not_come_back",  # I27
        "leases_.begin_wait(now_ns);",
        "",
    ),
    Mutant(
        "comes_back_without_who_has_left",  # I27
        'each.left = in.u8("state.left", 1) != 0;',
        'in.u8("state.left", 1);',
    ),
    Mutant(
        "comes_back_without_what_was_applied",  # I28
        "if (applied) {\n    update(",
        "if (false) {\n    update(",
    ),
    Mutant(
        "comes_back_without_what_was_skipped",  # I21
        "journal_->write({.kind = Change::Kind::kSkipped,",
        "if (false) journal_->write({.kind = Change::Kind::kSkipped,",
    ),
    Mutant(
        "leaves_out_what_comes_late",  # I29
        "if (!open_ || change.kind != Change::Kind::kApplied) return;",
        "return;",
    ),
    Mutant(
        "takes_what_is_behind_the_checkpoint",  # I29
        "if (is_behind(change.pushes[i].worker)) continue;",
        "",
    ),
    Mutant(
        "closes_a_checkpoint_too_early",  # I29
        "return !each.here || each.marked >= latest_;",
        "return each.marked >= 0;",
    ),
    Mutant(
        "comes_back_at_the_clock_of_its_start",  # I24
        "gate_.settle(push.worker, push.clock);",
        "",
    ),
    Mutant(
        "gives_who_returns_what_it_has_not_asked_for",  # I22
        "each.returns ? shard_->version() : shard_->pull(worker);",
        "shard_->pull(worker);",
    ),
    Mutant(
        "lets_a_duplicate_through_the_gate",  # I24
        "if (!gate_.may_go_on(push.clock)) return gate_.hold(ack, push.clock);",
        "",
    ),
)

_OF_MEMBERSHIP = (
    Mutant(
        "begins_with_as_few_as_it_goes_on_with",
        "return std::max(options_.min_np, possible);",
        "return options_.min_np;",
    ),
    Mutant(
        "forgets_the_first_member",
        "if (process.is_member()) members.push_back(incarnation);",
        "if (process.is_member() && process.place > 0) members.push_back(incarnation);",
    ),
    Mutant(
        "sends_an_epoch_while_the_killed_may_act",  # I32
        "if (enough && !is_dying()) return",
        "if (enough) return",
    ),
    Mutant(
        "grows_before_the_epoch_has_formed",
        "if (!is_formed_ || is_dying()) return; const std::vector<Incarnation> released",
        "if (is_dying()) return; const std::vector<Incarnation> released",
    ),
    Mutant(
        "grows_while_members_are_at_their_end",  # I34
        "if (!since) return",
        "if (true) return",
    ),
    Mutant(
        "never_grows",
        "send_epoch(/*planned=*/true);",
        "",
    ),
    Mutant(
        "says_that_a_planned_epoch_is_urgent",
        "NewEpoch next{.number = epoch_, .planned = planned_, .members = members_};",
        "NewEpoch next{.number = epoch_, .members = members_};",
    ),
    Mutant(
        "supposes_that_a_lost_host_had_not_formed",  # I6
        "has_state_ = has_state_ || ++epoch.formed == epoch.places.size();",
        "",
    ),
    Mutant(
        "has_all_epochs_meet_on_the_first_host",
        "next.meet_at = hosts_.meet_at(next.hosts.front());",
        "next.meet_at = hosts_.meet_at(0);",
    ),
    Mutant(
        "forgets_the_members_of_a_lost_host",
        "if (gone.stage != Stage::kMember) return; suppose_formed(gone);",
        "return;",
    ),
    Mutant(
        "names_members_of_a_lost_host",
        "lose_with_host(each, now_ns); start_idle_slots();",
        "lose_with_host(each, now_ns), decide(now_ns); start_idle_slots();",
    ),
    Mutant(
        "waits_for_hosts_that_do_not_reach_each_other",
        "if (verdict) actions_.emplace_back(GiveUp{.host = verdict->host, .by = verdict->by});",
        "",
    ),
    Mutant(
        "gives_a_host_up_at_once",
        "if (!due || now_ns < *due) return;",
        "if (!due) return;",
    ),
    Mutant(
        "believes_what_was_said_of_an_older_epoch",
        "if (message.epoch != epoch_ || other == processes_.end() ||",
        "if (other == processes_.end() ||",
    ),
    Mutant(
        "suspects_hosts_in_the_next_epoch",
        "suspicions_.clear();",
        "",
    ),
    Mutant(
        "gives_up_whoever_was_named",
        "cuts_.insert({whom, by});",
        "",
    ),
    Mutant(
        "gives_up_the_larger_half",
        "out_of_reach[host] += there->second;",
        "out_of_reach[host] -= there->second;",
    ),
    Mutant(
        "keeps_members_whose_host_leaves",
        "const std::vector<Incarnation> released = who_can_be_released();",
        "const std::vector<Incarnation> released;",
    ),
    Mutant(
        "releases_members_that_the_others_need",
        "if (size < options_.min_np) return {};",
        "",
    ),
    Mutant(
        "releases_the_last_who_hold_the_state",  # I6
        "if (leaving.size() == members.size()) {",
        "if (leaving.size() == members.size() && false) {",
    ),
    Mutant(
        "releases_one_of_a_host_and_keeps_another",
        "return host_of(each) == host_of(members[0]);",
        "return each == members[0];",
    ),
    Mutant(
        "releases_members_at_the_end_of_the_program",  # I34
        "if (processes_.at(each).end_since != 0) return {};",
        "",
    ),
    Mutant(
        "misses_a_released_member_that_came_to_its_end",  # I34
        "finished_places_.insert(process.place);",
        "(void)process.place;",
    ),
    Mutant(
        "forgets_the_members_of_a_host_that_is_lost_as_it_leaves",
        "if (!hosts_.is_lost(host)) hosts_.lose(host);",
        "if (hosts_.is_lost(host)) return {}; hosts_.lose(host);",
    ),
    Mutant(
        "starts_processes_on_a_host_that_leaves",
        "return !is_lost(host) && there < hosts_[host].options.slots;",
        "return there < hosts_[host].options.slots;",
    ),
    Mutant(
        "starts_more_than_a_host_has_room_for",
        "there < hosts_[host].options.slots;",
        "there <= hosts_[host].options.slots;",
    ),
    Mutant(
        "starts_processes_anywhere_but_at_home",
        "if (has_room(home)) return home;",
        "",
    ),
    Mutant(
        "starts_nothing_elsewhere_when_a_host_is_lost",
        "lose_with_host(each, now_ns); start_idle_slots();",
        "lose_with_host(each, now_ns);",
    ),
    Mutant(
        "starts_nothing_on_a_host_that_joins",
        "(void)hosts_.add({.slots = slots, .meet_at = std::move(meet_at)}); start_idle_slots();",
        "(void)hosts_.add({.slots = slots, .meet_at = std::move(meet_at)});",
    ),
    Mutant(
        "keeps_spares_on_a_host_that_leaves",
        "if (may_join) kill(each, process);",
        "",
    ),
    Mutant(
        "forgets_the_place_of_a_released_member",
        "vacated_.push_back({.place = process.place, .incarnation = incarnation}); actions_",
        "actions_",
    ),
    Mutant(
        "does_not_wait_for_a_host_that_may_return",
        "hosts_.is_any_lost() || options_.hosts_may_join;",
        "options_.hosts_may_join;",
    ),
    Mutant(
        "waits_for_hosts_although_nothing_may_start",
        "return may_come && (!idle_slots_.empty() || is_released) &&",
        "return may_come &&",
    ),
    Mutant(
        "meets_where_a_host_was_before_it_was_lost",
        ".meet_at = std::move(meet_at)}}; return true;",
        ".meet_at = hosts_[host].options.meet_at}}; return true;",
    ),
    Mutant(
        "starts_nothing_on_a_host_that_returns",
        "!hosts_.regain(host, std::move(meet_at))) return {}; start_idle_slots();",
        "!hosts_.regain(host, std::move(meet_at))) return {};",
    ),
    Mutant(
        "takes_a_cut_for_the_silence_of_processes",
        "host == hosts_.end() ? now_ns : host->second;",
        "now_ns;",
    ),
    Mutant(
        "counts_the_ranks_of_other_hosts_as_local",
        "if (host != host_of(own)) continue;",
        "",
    ),
    Mutant(
        "believes_an_end_of_an_older_epoch",
        "process.at_end = process.formed == epoch_;",
        "process.at_end = true;",
    ),
    Mutant(
        "keeps_an_end_in_the_next_epoch",
        "processes_.at(each).at_end = false;",
        "",
    ),
    Mutant(
        "lets_all_leave_when_one_is_at_its_end",
        "if (!process.at_end) return false;",
        "if (!process.at_end) continue;",
    ),
    Mutant(
        "leaves_spares_to_themselves",
        "} else { kill(incarnation, process); }",
        "}",
    ),
    Mutant(
        "ends_before_all_are_reaped",
        "if (processes_.empty()) end(",
        "if (is_over_ && processes_.size() == 1) processes_.clear(); if (processes_.empty()) end(",
    ),
    Mutant(
        "goes_on_where_nobody_holds_the_state",  # I6
        "if (has_state_ && !somebody_holds_state()) return",
        "if (false) return",
    ),
    Mutant(
        "takes_each_member_for_a_holder",  # I6
        "return each.second.is_member() && each.second.holds_state();",
        "return each.second.is_member();",
    ),
    Mutant(
        "takes_an_old_epoch_for_the_newest",
        "process.formed = message.epoch;",
        "process.formed = epoch_;",
    ),
    Mutant(
        "does_not_count_starts",
        "if (is_again && starts_left_ > 0) --starts_left_;",
        "",
    ),
    Mutant(
        "starts_nothing_again",
        "idle_slots_[process.slot] = process.host;",
        "",
    ),
    Mutant(
        "starts_a_wrong_script_for_ever",
        "++failed_starts_ > kFailedStartsMax",
        "++failed_starts_ < 0",
    ),
    Mutant(
        "does_not_forget_starts_that_failed",
        "failed_starts_ = 0;",
        "",
    ),
    Mutant(
        "starts_again_what_fails_at_once",
        "if (how == ExitKind::kError && !has_state_) return",
        "if (false) return",
    ),
    Mutant(
        "does_not_notice_that_a_member_is_gone",
        "if (!gone.died) vacate(incarnation, gone, now_ns); if (futility_.step_fails(how",
        "if (futility_.step_fails(how",
    ),
    Mutant(
        "does_not_believe_that_a_member_has_died",
        "hear_died(died->who, now_ns);",
        ";",
    ),
    Mutant(
        "waits_for_the_reaping_of_the_dead",
        "return each.second.killed && !each.second.died; });",
        "return each.second.killed; });",
    ),
    Mutant(
        "misses_the_dead_twice",
        "if (!gone.died) vacate(incarnation, gone, now_ns); if (futility_.step_fails(how",
        "vacate(incarnation, gone, now_ns); if (futility_.step_fails(how",
    ),
    Mutant(
        "gives_up_before_the_dead_are_started_again",
        "|| processes_.empty()) && !is_reaping())",
        "|| processes_.empty()) && !is_dying())",
    ),
    Mutant(
        "gives_a_newcomer_a_place_that_is_taken",
        "return places_given_++;",
        "return places_given_;",
    ),
    Mutant(
        "takes_the_last_slot_first",
        "return processes_.at(each).slot;",
        "return -processes_.at(each).slot;",
    ),
    Mutant(
        "takes_more_members_than_there_is_room_for",
        "newcomers.resize(std::min(newcomers.size(), static_cast<std::size_t>(room())));",
        "",
    ),
    Mutant(
        "waits_for_members_for_ever",
        "if (late && now_ns >= *late) return end(EndReason::kTooFewRanks);",
        "",
    ),
    Mutant(
        "gives_up_one_too_early",
        "count(&Process::may_be_member) < options_.min_np && !may_host_come();",
        "count(&Process::may_be_member) <= options_.min_np && !may_host_come();",
    ),
    Mutant(
        "takes_one_program_without_a_loop_for_all",
        "return epoch_ == 0 && done_ >= options_.np;",
        "return epoch_ == 0 && done_ > 0;",
    ),
    Mutant(
        "forgives_an_error_at_the_end",
        "if (how == ExitKind::kError) end(EndReason::kFailed, incarnation);",
        "",
    ),
    Mutant(
        "listens_after_the_end",
        "if (has_ended_ || is_over_ || found == processes_.end())",
        "if (has_ended_ || found == processes_.end())",
    ),
    Mutant(
        "tolerates_nonsense",
        "evict(incarnation, process, now_ns);",
        "",
    ),
    Mutant(
        "takes_the_place_that_was_vacated_first",
        "const int place = vacated_.back().place; vacated_.pop_back();",
        "const int place = vacated_.front().place; vacated_.erase(vacated_.begin());",
    ),
    Mutant(
        "lets_all_leave_although_a_rank_was_lost",  # I34
        "if (missing() == 0) return let_all_leave();",
        "return let_all_leave();",
    ),
    Mutant(
        "counts_ranks_at_the_end_of_the_latest",  # I34
        "since = std::min(since.value_or(epoch_), process.end_since);",
        "since = std::max(since.value_or(0), process.end_since);",
    ),
    Mutant(
        "forgets_who_has_left_its_last_loop",  # I34
        "if (process.end_since == 0) continue;",
        "if (!process.at_end) continue;",
    ),
    Mutant(
        "forgets_the_epoch_in_which_a_loop_was_left",  # I34
        "epochs_.lower_bound(oldest)",
        "epochs_.lower_bound(epoch_)",
    ),
    Mutant(
        "misses_a_rank_for_ever",
        "const bool is_late = now_ns >= *deadline_of_finishing();",
        "const bool is_late = false;",
    ),
    Mutant(
        "misses_a_rank_that_nobody_can_replace",
        "count(&Process::may_be_member) == count(&Process::is_member) && !may_host_come();",
        "false;",
    ),
    Mutant(
        "gives_a_rank_up_before_it_is_reaped",
        "if (!is_late && (!in_vain || is_reaping())) return;",
        "if (!is_late && !in_vain) return;",
    ),
    Mutant(
        "waits_for_a_rank_that_has_left_early",
        "end_if_one_left_early();",
        "",
    ),
    Mutant(
        "ends_the_job_for_a_rank_that_is_on_its_way",
        "|| !found->second.at_end) return;",
        ") return;",
    ),
    Mutant(
        "misses_a_rank_in_an_epoch_that_is_over",
        "if (message.epoch == epoch_) left_early_ = message;",
        "left_early_ = message;",
    ),
    Mutant(
        "misses_in_the_next_epoch_who_was_missed_before",
        "left_early_.reset();",
        "",
    ),
    Mutant(
        "takes_the_first_to_form_for_all",
        "has_state_ = has_state_ || by_all;",
        "has_state_ = true;",
    ),
    Mutant(
        "forgets_who_has_formed_and_is_gone",  # I6
        "has_state_ = has_state_ || by_all;",
        "has_state_ = has_state_ || (by_all && message.epoch == epoch_ && !waits());",
    ),
    Mutant(
        "does_not_hear_that_the_doomed_have_formed",  # I6
        "hear_doomed(process, message, now_ns);",
        "",
    ),
    Mutant(
        "redoes_a_step_that_fails_for_ever",
        "losses_ > kLossesAtOneStepMax || errors_ > kErrorsAtOneStepMax",
        "losses_ > kLossesAtOneStepMax",
    ),
    Mutant(
        "redoes_a_step_that_kills_for_ever",
        "losses_ > kLossesAtOneStepMax || errors_ > kErrorsAtOneStepMax",
        "errors_ > kErrorsAtOneStepMax",
    ),
    Mutant(
        "takes_each_loss_for_an_error",
        "if (by_error) ++errors_;",
        "++errors_;",
    ),
    Mutant(
        "does_not_see_that_steps_are_made",
        "losses_ = errors_ = 0;",
        "",
    ),
    Mutant(
        "takes_each_epoch_for_progress",
        "if (step <= step_) return;",
        "",
    ),
    Mutant(
        "tolerates_silence",
        "evict(each, processes_.at(each), now_ns);",
        "",
    ),
    Mutant(
        "does_not_wait_for_the_evicted",
        "kill(incarnation, process); if (process.stage == Stage::kMember) begin_waiting(now_ns);",
        "kill(incarnation, process);",
    ),
    Mutant(
        "ends_leases_too_early",
        "if (until_ns >= heard.at_ns + lease_ns_)",
        "if (until_ns >= heard.at_ns + lease_ns_ / 2)",
    ),
    Mutant(
        "hears_nobody_and_blames_the_processes",
        "if (stood_still) heard.at_ns = now_ns;",
        "(void)stood_still;",
    ),
    Mutant(
        "always_takes_itself_for_the_silent_one",
        "const bool stood_still = now_ns > looked_at_ns_ + lease_ns_ / 2;",
        "const bool stood_still = true;",
    ),
    Mutant(
        "begins_a_lease_without_a_beat",
        "if (is_beat || heard_.contains(incarnation))",
        "",
    ),
    Mutant(
        "looks_for_the_silent_too_rarely",
        "return looked_at_ns_ + std::max<std::uint64_t>(1, lease_ns_ / 4);",
        "return looked_at_ns_ + lease_ns_;",
    ),
    Mutant(
        "keeps_the_lease_of_the_killed",
        "if (std::exchange(process.killed, true)) return; leases_.close(incarnation);",
        "if (std::exchange(process.killed, true)) return;",
    ),
    Mutant(
        "tells_a_loss_twice",
        ".lost = std::exchange(lost_, {})",
        ".lost = lost_",
    ),
    Mutant(
        "recovers_from_the_oldest_state",  # I6
        "standings[rank].moment > standings[*newest].moment",
        "standings[rank].moment < standings[*newest].moment",
    ),
    Mutant(
        "recovers_from_a_newcomer",  # I6
        "if (!standings[rank].holds_state) continue;",
        "",
    ),
    Mutant(
        "gives_a_rank_that_is_one_behind_nothing",  # I6
        "} else if (standing.moment < plan.moment) {",
        "} else if (standing.moment + 1 < plan.moment) {",
    ),
    Mutant(
        "gives_newcomers_nothing",
        "plan.newcomers.push_back(static_cast<Rank>(rank));",
        "",
    ),
)


SUITES = (
    Suite(
        "negotiation",
        ("sim/n*.cc", "sim/[!n]*.cc"),  # negotiation_test, which finds most of them, runs first
        _OF_NEGOTIATION + _OF_GROUPS_AND_JOIN + _OF_ROOTS_AND_MESSAGES,
        filter="*InEverySchedule",
    ),
    Suite(
        "proof",
        (
            "wire/handshake_test.cc",
            "wire/sealed_test.cc",
            "wire/man_in_the_middle_test.cc",
            "wire/settings_test.cc",
            "wire/introduction_test.cc",
            "transport/dial/roster_test.cc",
            "transport/dial/throttle_test.cc",
        ),
        _OF_PROOF,
    ),
    Suite("relay", ("transport/link/relay_test.cc",), _OF_RELAY),
    Suite(
        "ring",
        ("plan/network.cc", "plan/ring_test.cc", "plan/schedule_test.cc"),
        _OF_RING,
        filter="-*/64",  # participants, which take longer and show no more
    ),
    Suite(
        "parameter server",
        ("sim/ps_*.cc", "sim/network.cc"),
        _OF_PARAMETER_SERVER,
        filter="ParameterServer*",
    ),
    Suite("membership", ("sim/member_*.cc",), _OF_MEMBERSHIP, filter="Member*"),
)

ALL = [(suite, mutant) for suite in SUITES for mutant in suite.mutants]
