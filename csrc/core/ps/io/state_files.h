#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/ps/decide/journal.h"
#include "core/ps/decide/server_protocol.h"
#include "core/ps/io/record_file.h"
#include "core/ps/io/snapshot.h"

namespace ciranda::ps {

// The fate of an answered push if the server is killed.
enum class Durability : std::uint8_t {
  kMemory,  // lost and counted (Stats::lost), if it came after the latest snapshot
  kLog,     // kept, unless the machine goes down too
  kDisk,    // kept even then
};

struct StateOptions {
  std::string folder;
  Durability durability = Durability::kLog;
  std::uint64_t snapshot_ns = 60'000'000'000;  // interval of snapshots, if something has changed
};

// Persists a server's state in a folder that only this server uses: snapshots, and logs of the
// changes since. `snapshot-G` is whole once it has that name; `log-G` has the changes since it was
// begun. A SnapshotChild writes the snapshots, except for one in finish().
//
// Owned by the Server. Not thread-safe. Blocks only for the disk.
class StateFiles final : public Journal {
 public:
  // Creates the folder if it is missing, and locks it. Restores `protocol` from the files in it and
  // becomes its journal. `protocol` is new, and must outlive this object. kInvalidArgument if
  // another server has the folder; kMalformed or kMismatch name a file that is damaged or not this
  // server's.
  static Result<std::unique_ptr<StateFiles>> open(StateOptions options, ServerProtocol& protocol,
                                                  std::uint64_t now_ns);
  ~StateFiles() override;
  StateFiles(const StateFiles&) = delete;
  StateFiles& operator=(const StateFiles&) = delete;

  // A phrase about the state that the folder had; empty: none.
  const std::string& found() const { return found_; }
  // The job of the state that the folder had; empty: none.
  const std::string& job() const { return job_; }

  void write(const Change& change, const Data& data) override;
  // Makes all written changes as safe as promised, except while lacks_snapshot(). After an error
  // the server must send no more answers.
  Status settle();
  // Returns true until the first snapshot is made: no answer may say yet that the server has the
  // parameters.
  bool lacks_snapshot() const { return generation_ == 0 && protocol_.has_parameters(); }
  // Begins a snapshot when one is due, and checks on the one in the making. A failed snapshot is
  // reported on stderr and leaves the previous one.
  void tend(std::uint64_t now_ns);
  // Returns when to call tend() next (monotonic_ns), or kNever.
  std::uint64_t next_deadline_ns() const;
  // Blocks until the state is on the disk, so that another server can go on with it.
  Status finish();
  // Removes the state's files, since the job is over.
  void discard();

 private:
  StateFiles(StateOptions options, ServerProtocol& protocol)
      : options_(std::move(options)), protocol_(protocol) {}
  Status claim();
  Status recover(std::uint64_t now_ns);
  Status read_snapshot(std::uint64_t now_ns);
  Status read_log(const std::string& path, std::uint64_t& changes, bool& torn);
  Status open_log(std::uint64_t generation);
  Status begin_snapshot(std::uint64_t now_ns);
  bool look_after_child(bool wait);
  void remove_before(std::uint64_t generation);
  FileNames names(std::uint64_t generation) const;
  std::string path(const char* what, std::uint64_t generation) const;
  bool keeps_log() const { return options_.durability != Durability::kMemory; }

  const StateOptions options_;
  ServerProtocol& protocol_;
  std::string found_;
  std::string job_;
  Fd folder_;                     // locked
  std::uint64_t generation_ = 0;  // of the latest whole snapshot; 0: none
  std::uint64_t log_generation_ = 0;
  std::optional<RecordWriter> log_;  // none: kMemory, or no snapshot begun
  Status log_failed_;
  bool log_synced_ = true;
  bool changed_ = false;            // since a snapshot was begun
  SnapshotChild child_;             // makes snapshot log_generation_
  std::uint64_t begun_ns_ = 0;      // when the latest snapshot was begun
  std::vector<std::byte> encoded_;  // scratch
};

}  // namespace ciranda::ps
