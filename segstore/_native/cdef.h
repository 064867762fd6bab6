/* The native contract: parsed by cffi and included by every C file here.
 *
 * Stateless: descriptors, pointers and lengths in; a count, or a negative
 * SEG_E_* / -errno, out. Nothing is allocated that the caller must free, but for
 * what hand_over.c makes, and nothing is read or written outside the lengths that were given, whatever
 * the bytes say. All structs are in host order and naturally aligned, so that
 * numpy structured arrays can stand for arrays of them.
 */

/* A record batch's header (org.apache.kafka.common.record.DefaultRecordBatch), or that of a message of magic 0 or 1
 * (AbstractLegacyRecordBatch), which is a batch of one record: without leader epoch, producer and sequence (-1), and
 * in magic 0 without timestamps (-1). A message with a codec is a wrapper of several records. Its base offset is the
 * least that it may have, behind the batch before; its last offset where that batch is not known: only seg_bring_up
 * tells. */
typedef struct seg_batch {
    int64_t position;       /* of the batch's first byte in its file */
    int64_t base_offset;
    int64_t last_offset;
    int64_t base_timestamp; /* ms; the delete horizon where attribute bit 6 is set */
    int64_t max_timestamp;  /* ms */
    int64_t producer_id;
    int32_t size;           /* bytes of the whole batch, header included */
    int32_t leader_epoch;
    int32_t base_sequence;
    int32_t count;          /* records */
    uint32_t crc;
    int16_t attributes;
    int16_t producer_epoch;
    int64_t magic;          /* 0, 1 or 2 */
} seg_batch;

/* Why a scan stopped. */
enum {
    SEG_END = 0,            /* exactly at the end of the buffer */
    SEG_SHORT = 1,          /* the next batch is not whole in the buffer */
    SEG_FULL = 2,           /* capacity or max_bytes is used up */
    SEG_STOP = 3,           /* the next batch begins at or after end_offset */
    SEG_BAD_LENGTH = 4,     /* the length field is impossible */
    SEG_BAD_MAGIC = 5,      /* above 2 */
    SEG_BAD_CRC = 6,
    SEG_BAD_OFFSETS = 7,    /* negative, or not above the batch before */
    SEG_BAD_COUNT = 8       /* the record count is impossible */
};

/* What a call on a short way gives where anything is not as it nearly always is: nothing was done, and the long
 * way is to be taken. No errno, and none of the numbers below. */
enum { SEG_SLOW = -65536 };

/* What an append gives that is in the log of the leader, while a follower lacks it. */
enum { SEG_BEHIND = -65540 };

/* Why columns could not be encoded, or records not decoded. */
enum {
    SEG_E_ROOM = -10001,    /* the output is too small for one batch */
    SEG_E_COLUMN = -10002,  /* a column's offsets point outside its data, or fall */
    SEG_E_NULL = -10003,    /* a header without a name */
    SEG_E_TOO_LARGE = -10004, /* a batch would not fit an int32 */
    SEG_E_VARINT = -10005,
    SEG_E_RECORD = -10006,  /* a record's length and its content disagree */
    SEG_E_TRAILING = -10007, /* bytes left after the last record */
    SEG_E_FEW = -10008,     /* fewer records than the header says */
    SEG_E_OFFSETS = -10009, /* offsets that don't rise, or don't fit their wrapper */
    SEG_E_NESTED = -10010,  /* a message in a wrapper that is compressed itself, or of another magic */
    SEG_E_CRC = -10011
};

typedef struct seg_scan_end {
    int64_t position;       /* file position after the last batch taken or skipped */
    int64_t need;           /* SEG_SHORT: bytes of the next batch, 0 where even that is not known */
    int64_t last_offset;    /* of the last batch taken or skipped; -1 for none */
    int32_t status;
    int32_t reserved;
} seg_scan_end;

/* Walk the batches in buf (its first byte lies at `position` in the file),
 * skip those that end below from_offset without checking their CRC, take the
 * rest until end_offset, max_bytes (at least one batch is taken) or capacity.
 * A wrapper that comes first begins at offset `least` at the earliest; -1: not known. */
int64_t seg_scan(const uint8_t *buf, int64_t len, int64_t position, int64_t least, int64_t from_offset,
                 int64_t end_offset, int64_t max_bytes, int32_t check_crcs,
                 seg_batch *out, int64_t capacity, seg_scan_end *end);

/* Whether the bytes are the batch of magic 2 that *h was read of, whole, and (check_crc) its CRC holds: 1 or 0. */
int32_t seg_sound(const uint8_t *batch, int64_t len, const seg_batch *h, int32_t check_crc);

/* Position within buf of the first whole batch whose CRC holds and whose base
 * offset is in [least_offset, most_offset], looking at every byte from `from`
 * on; -1 where there is none. Finds the way back behind a damaged header. */
int64_t seg_resync(const uint8_t *buf, int64_t len, int64_t from, int64_t least_offset,
                   int64_t most_offset);

typedef struct seg_decoded {
    int64_t records;
    int64_t null_keys;
    int64_t null_values;
    int64_t with_headers;   /* records that have at least one header */
    int64_t fault_batch;    /* where it failed: batch, record within it, position in the arena */
    int64_t fault_record;
    int64_t fault_at;
} seg_decoded;

/* Decode the records of n batches. The uncompressed records of batch i lie at
 * arena[at[i] : at[i] + lens[i]]. Columns that are not wanted are NULL. All
 * are int64, one per record; *_at are positions in the arena, *_len -1 for
 * null, headers_at the position of the header-count varint. LogAppendTime
 * batches give max_timestamp to each record. Returns records or SEG_E_*. */
int64_t seg_decode(const uint8_t *arena, int64_t arena_len, const seg_batch *batches,
                   const int64_t *at, const int64_t *lens, int64_t n, int64_t capacity,
                   int64_t *offsets, int64_t *timestamps, int64_t *key_at, int64_t *key_len,
                   int64_t *value_at, int64_t *value_len, int64_t *headers_at,
                   seg_decoded *out);

/* Which of n batches (as for seg_decode) may hold a record stamped from `least` to `most`, both included:
 * found[i] is 1 or 0. A batch that is damaged may. Returns how many; SEG_E_COLUMN for one outside the arena. */
int64_t seg_stamped(const uint8_t *arena, int64_t arena_len, const seg_batch *batches, const int64_t *at,
                    const int64_t *lens, int64_t n, int64_t least, int64_t most, uint8_t *found);

/* --- bring_up.c: messages of magic 0 and 1 as batches of magic 2 ---------------------- */
/* Bring up n plain messages, one kind after the other, which lie in buf (its first byte at `position`): neighbours of
 * one kind share a batch of at most batch_bytes. Headers go to out_batches, which has room for n; their positions
 * count from out. `len` + 61 n bytes are room enough. Returns the bytes written, *n_batches; or SEG_E_COLUMN where
 * headers and bytes don't agree, SEG_E_RECORD for a message whose lengths don't fill it, SEG_E_ROOM; *fault is the
 * message then. */
int64_t seg_bring_up(const uint8_t *buf, int64_t len, int64_t position, const seg_batch *messages, int64_t n,
                     int64_t batch_bytes, uint8_t *out, int64_t capacity, seg_batch *out_batches,
                     int64_t *n_batches, int64_t *fault);
/* Decode n plain messages where they lie in buf, without bringing them up, into the seven columns of seg_decode, each n
 * numbers behind the one before. headers_at is where a 0 lies between key and value. runs, with room for n, gets a
 * header of magic 2 for each run of one kind. Returns n; SEG_SLOW where a message has a codec or no value, is damaged
 * or large: then it is to be brought up, which tells. */
int64_t seg_decode_messages(const uint8_t *buf, int64_t len, int64_t position, const seg_batch *messages, int64_t n,
                            int64_t *rows, seg_batch *runs, int64_t *n_runs);
/* Bring up the messages in a wrapper, whose value is decompressed at `plain`, as one plain batch with the wrapper's
 * last offset; their offsets are at least `least`. *out_batch has position 0. `len` + 61 bytes are room enough.
 * Returns as seg_bring_up; SEG_E_OFFSETS, SEG_E_NESTED, SEG_E_CRC, SEG_E_FEW where there is no message; *fault is the
 * number of the message. What follows the last whole message is left out, as Kafka leaves it out. */
int64_t seg_bring_up_nested(const uint8_t *plain, int64_t len, const seg_batch *wrapper, int64_t least,
                            uint8_t *out, int64_t capacity, seg_batch *out_batch, int64_t *fault);

/* Decode the headers of n records (positions as seg_decode gave them) into flat
 * columns; counts[i] headers for record i. With NULL columns it only counts.
 * Returns the headers in all, or SEG_E_*. */
int64_t seg_headers(const uint8_t *arena, int64_t arena_len, const int64_t *headers_at, int64_t n,
                    int64_t capacity, int64_t *counts, int64_t *name_at, int64_t *name_len,
                    int64_t *value_at, int64_t *value_len);

/* Bytes of n byte strings of these lengths, and how many of them are null (-1). */
int64_t seg_extent(const int64_t *lens, int64_t n, int64_t *nulls);

/* Copy n slices of the arena one after the other into out, and write n + 1
 * Arrow offsets (int32 where wide is 0, else int64). Nulls (-1) are empty.
 * Returns bytes, or SEG_E_ROOM, SEG_E_COLUMN. */
int64_t seg_gather(const uint8_t *arena, int64_t arena_len, const int64_t *at, const int64_t *lens,
                   int64_t n, int32_t wide, uint8_t *out, int64_t capacity, void *offsets);

/* A byte string of its own; a length of -1: null. */
typedef struct seg_span {
    const uint8_t *data;
    int64_t len;
} seg_span;

/* A column of byte strings. */
typedef struct seg_column {
    const uint8_t *data;     /* kind 4: none */
    int64_t data_len;        /* bytes of all elements, at least */
    const void *offsets;     /* kind 1: int32[n + 1]; kind 2: int64[n + 1]; absolute in data; kind 4: seg_span[n] */
    const uint8_t *validity; /* Arrow bitmap, least bit first, 0 = null; NULL: none is null */
    int64_t validity_bit;    /* the bit of the first element */
    int64_t n;
    int64_t width;           /* kind 3: bytes of each element; kind 4: of the longest one */
    int32_t kind;            /* 0: every element is null; 1, 2: offsets; 3: fixed width; 4: spans */
    int32_t nulls;           /* kind 4: 1 where an element is null */
} seg_column;

typedef struct seg_header_columns {
    const int64_t *offsets;  /* int64[n + 1]: headers of record i are offsets[i] .. offsets[i + 1] */
    int64_t n;
    seg_column names;
    seg_column values;
} seg_header_columns;

typedef struct seg_template {
    int64_t base_offset;
    int64_t producer_id;
    int64_t delete_horizon;  /* used where attribute bit 6 is set */
    int32_t leader_epoch;
    int32_t base_sequence;   /* -1: none; else counted on from batch to batch, wrapping at 2^31 */
    int16_t attributes;
    int16_t producer_epoch;
} seg_template;

/* Bytes of the largest record of the column range, length varint included
 * (offset delta taken as 5 bytes); *index tells which. SEG_E_COLUMN, SEG_E_NULL. */
int64_t seg_largest(const seg_column *keys, const seg_column *values,
                    const seg_header_columns *headers, int64_t first, int64_t last, int64_t *index);

/* Encode records first .. last - 1 into batches of at most batch_bytes (at least
 * one record each), as many whole batches as fit out and max_batches, with header
 * and CRC. timestamps may be NULL (then `timestamp` for all), offsets NULL
 * (contiguous from base_offset; else int64 absolute, rising: gaps stay). headers
 * may be NULL. batches[i].position counts from out. Where attributes name a codec
 * the records are still written plain and the CRC left 0: the caller compresses
 * and seals. Returns bytes written, *taken records; SEG_E_*. */
int64_t seg_encode(const seg_column *keys, const seg_column *values,
                   const seg_header_columns *headers, const int64_t *timestamps, int64_t timestamp,
                   const int64_t *offsets, int64_t first, int64_t last, int64_t batch_bytes,
                   const seg_template *t, uint8_t *out, int64_t capacity, seg_batch *batches,
                   int64_t max_batches, int64_t *n_batches, int64_t *taken);

/* As seg_encode; a batch also ends before each record of `cuts` (rising). */
int64_t seg_encode_cut(const seg_column *keys, const seg_column *values,
                       const seg_header_columns *headers, const int64_t *timestamps, int64_t timestamp,
                       const int64_t *offsets, int64_t first, int64_t last, int64_t batch_bytes,
                       const int64_t *cuts, int64_t n_cuts, const seg_template *t, uint8_t *out,
                       int64_t capacity, seg_batch *batches, int64_t max_batches, int64_t *n_batches,
                       int64_t *taken);

/* Write header h (size = h->size) at the front of a batch whose payload is in place, CRC last. */
int64_t seg_seal(uint8_t *batch, int64_t len, seg_batch *h);

/* Give a run of n batches in buf (one after the other from its start) their offsets from
 * base_offset on and their leader epoch; where append_time >= 0, LogAppendTime, the
 * stamp and a new CRC. Updates batches[] too, position included (first at `position`).
 * Returns the next offset, SEG_E_COLUMN where the batches don't match the bytes. */
int64_t seg_assign(uint8_t *buf, int64_t len, seg_batch *batches, int64_t n, int64_t base_offset,
                   int32_t leader_epoch, int64_t append_time, int64_t position);

/* --- validate.c: what a producer sent (LogValidator) ------------------- */
/* What a topic's settings allow. */
typedef struct seg_rules {
    int64_t largest_batch;   /* bytes */
    int64_t before_ms;       /* how far from the clock a timestamp may be */
    int64_t after_ms;
    int32_t create_time;     /* 1: timestamps are judged; 0: the log gives its own */
    int32_t needs_key;
} seg_rules;

/* What a check gives. PACKED: all is as it must be, and records are compressed, so that they were not looked at. */
enum {
    SEG_CHECKED = 0, SEG_CHECK_PACKED, SEG_CHECK_SHORT, SEG_CHECK_MAGIC, SEG_CHECK_MORE, SEG_CHECK_BASE,
    SEG_CHECK_LARGE, SEG_CHECK_CRC, SEG_CHECK_COUNT, SEG_CHECK_CONTROL, SEG_CHECK_HORIZON, SEG_CHECK_CODEC,
    SEG_CHECK_PRODUCER, SEG_CHECK_RECORD, SEG_CHECK_OFFSETS, SEG_CHECK_APPEND_TIME, SEG_CHECK_KEY, SEG_CHECK_TIME
};

typedef struct seg_checked {
    int64_t max_timestamp;   /* ms, of the records; -1: none has one */
    int64_t record;          /* RECORD, OFFSETS: the number of the record that is not as it must be */
} seg_checked;

/* Check the `len` bytes of one batch with base offset 0; *h gets its header. `now` is the clock (ms). */
int64_t seg_check_batch(const uint8_t *batch, int64_t len, const seg_rules *rules, int64_t now, seg_batch *h,
                        seg_checked *out);
/* Check the records of a batch with header *b, which lie in `len` plain bytes. */
int64_t seg_check_records(const uint8_t *plain, int64_t len, const seg_rules *rules, int64_t now, const seg_batch *b,
                          seg_checked *out);

/* --- crc32.c: zlib's ---------------------------------------------------- */
uint32_t seg_crc32(uint32_t crc, const uint8_t *buf, int64_t len);
uint32_t seg_crc32_portable(uint32_t crc, const uint8_t *buf, int64_t len);

/* --- crc32c.c -------------------------------------------------------- */
uint32_t seg_crc32c(uint32_t crc, const uint8_t *buf, int64_t len);
uint32_t seg_crc32c_portable(uint32_t crc, const uint8_t *buf, int64_t len);
int32_t seg_crc32c_is_hardware(void);

/* --- index.c --------------------------------------------------------- */
typedef struct seg_index_state {
    int64_t bytes_since;      /* bytes since the last indexed batch began */
    int64_t max_timestamp;    /* largest so far, -1 for none */
    int64_t max_timestamp_offset; /* last offset of the batch that has it */
    int64_t last_time_entry;  /* timestamp of the newest time index entry, -1 for none */
} seg_index_state;

/* Kafka's LogSegment.append: entries for n appended batches of a segment. Big-endian
 * entries go to offset_out (8 bytes each, room for n) and time_out (12 bytes each,
 * room for n); *n_time of the latter. Returns offset entries written. */
int64_t seg_index_entries(const seg_batch *batches, int64_t n, int64_t base_offset, int64_t interval,
                          seg_index_state *state, uint8_t *offset_out, uint8_t *time_out,
                          int64_t *n_time);
/* Slot of the last of n entries with relative offset (timestamp) <= the given one, or -1. */
int64_t seg_offset_slot(const uint8_t *index, int64_t n, int64_t relative_offset);
int64_t seg_time_slot(const uint8_t *index, int64_t n, int64_t timestamp);
/* How many leading entries are in order and inside: offsets rise, are in
 * [0, end_relative), positions rise and lie in (0, log_size); for the time index
 * timestamps rise, offsets do not fall. */
int64_t seg_offset_valid(const uint8_t *index, int64_t n, int64_t end_relative, int64_t log_size);
int64_t seg_time_valid(const uint8_t *index, int64_t n, int64_t end_relative);

/* --- ends.c: the published ends of partitions, in shared memory ---------- */
enum {
    SEG_ENDS_HEADER = 64,
    SEG_ENDS_SLOT = 64,
    SEG_ENDS_UNCHECKED = 0x53454731, /* formats, at map[12:16] */
    SEG_ENDS_CHECKED = 0x4c5a38ce,
    SEG_ENDS_DAMAGED = -1
};
/* Write n slots (8 values each, of layout and epoch 32 bits) with their checks, as one
 * publication under the sequence lock at map[0:8]; the int32 at map[8:12] counts
 * publications, for waiters. One writer. */
int64_t seg_publish(uint8_t *map, int64_t len, const int64_t *slots, const int64_t *values, int64_t n);
/* Wait until the count of publications is no longer `seen`: 0; -ETIMEDOUT, or -EINTR for a signal. Any
 * number of threads and processes may wait, with a mapping that they can only read. */
int64_t seg_await(const uint8_t *map, int64_t len, uint32_t seen, int64_t timeout_ns);
/* Let all who wait return, although nothing was published: how many did. A mapping to read will do. */
int64_t seg_wake(const uint8_t *map, int64_t len);
/* As seg_wake; of this process's threads those in seg_await_ends return too. */
int64_t seg_rouse(const uint8_t *map, int64_t len);
/* Let all who wait return, and look at more than the ends that they follow; returns as seg_wake. */
int64_t seg_nudge(uint8_t *map, int64_t len);
/* A number that only seg_nudge changes for good; a publication that is under way may change it for a moment.
 * To be read before what a nudge tells of is looked at. */
int64_t seg_nudges(const uint8_t *map, int64_t len);
enum { SEG_FOLLOWED_KEY, SEG_FOLLOWED_START, SEG_FOLLOWED_END, SEG_FOLLOWED_STABLE, SEG_FOLLOWED_LAYOUT_AND_EPOCH,
       SEG_FOLLOWED };
/* The end of a partition as it was when it was last looked at: key, log start offset, high watermark, last
 * stable offset, and layout (low 32 bits) with leader epoch. The batch with `offset` will begin at `position`
 * of the file `fd`; -1: that is not known. */
typedef struct seg_followed {
    int64_t slot;
    int64_t words[SEG_FOLLOWED];
    int64_t offset, position;
    int32_t fd;
    int32_t reserved;
} seg_followed;
/* Fill f->words with what slot f->slot holds now: 1; 0 for a damaged slot, -EAGAIN as seg_snapshot. */
int64_t seg_follow(const uint8_t *map, int64_t len, seg_followed *f, int64_t spins);
/* The last record of a partition. `size`: bytes of its batch, 0 where there is no such record. Key and value
 * lie in `bytes` from *_at up to *_end, both -1 of a null. */
enum { SEG_LAST_ROOM = 4096 };
enum { SEG_LAST_SIZE, SEG_LAST_OFFSET, SEG_LAST_TIMESTAMP, SEG_LAST_TYPE, SEG_LAST_EPOCH, SEG_LAST_START,
       SEG_LAST_KEY, SEG_LAST_KEY_END, SEG_LAST_VALUE, SEG_LAST_VALUE_END, SEG_LAST_NUMBERS };
typedef struct seg_last_record {
    int64_t numbers[SEG_LAST_NUMBERS]; /* timestamp in ms; type 0 CreateTime, 1 LogAppendTime; log start offset */
    int32_t committed;       /* in: the partition may have no open transaction */
    int32_t check_crc;       /* in */
    char bytes[SEG_LAST_ROOM];
} seg_last_record;
/* Who waits: for the ends of n partitions in a mapping. `spins`: tries at a publication that is under way.
 * `turn`: the partition that is looked at first; the one found last is looked at last, so that none starves. */
typedef struct seg_follower {
    const uint8_t *map;
    int64_t len;
    seg_followed *followed;
    int64_t n;
    int64_t spins;
    seg_last_record *last;
    int64_t turn;
} seg_follower;
/* Wait until one of n slots differs from what is known of it, and make that known: its number. n: seg_nudge
 * was called, or by this process seg_rouse. -EAGAIN as seg_snapshot, or a damaged slot; -ETIMEDOUT, -EINTR
 * as seg_await; a timeout of 0 is a look without a system call. Publications of other partitions cost a look
 * at the n slots, and are no reason to return. */
int64_t seg_await_ends(seg_follower *f, uint32_t nudges, int64_t timeout_ns);
/* A consistent copy of n slots' values; -EAGAIN where a publication is under way after `spins` tries.
 * The key of a slot whose check is wrong is SEG_ENDS_DAMAGED. */
int64_t seg_snapshot(const uint8_t *map, int64_t len, const int64_t *slots, int64_t *values,
                     int64_t n, int64_t spins);

/* What a reader has seen of one slot. */
typedef struct seg_seen {
    const uint8_t *map;
    int64_t len, slot;
    int64_t generation;     /* of the slots: the int64 at map[24:32] */
    int64_t values[8];      /* as seg_snapshot gave them */
} seg_seen;
/* Whether that is so still: 1; 0 where it is not, or where a publication under way may be changing it. */
int32_t seg_unchanged(const seg_seen *seen);

/* --- tail.c: the tail of a log, at which C appends while Python lends it ------------------------------- */
enum { SEG_NOW = -65538 };  /* in place of a time in ms: that of the clock */
enum { SEG_CLAIMS = 4, SEG_RETAINED = 5, SEG_FOLLOWERS = 8 };

/* A batch of a producer: what is kept of it. */
typedef struct seg_retained {
    int64_t last_offset;
    int64_t timestamp;
    int32_t last_sequence;
    int32_t offset_delta;
} seg_retained;

/* A producer with an id, whose next batches may be written: they follow the last one, in the same epoch. */
typedef struct seg_claim {
    int64_t producer_id;
    int64_t appended_ms;     /* the clock at its last append */
    int64_t taken;           /* its batches since the tail was lent, of which `last` has the last ones: */
    seg_retained last[SEG_RETAINED]; /* batch i is last[i % SEG_RETAINED] */
    int32_t next_sequence;
    int16_t producer_epoch;
    int16_t attributes;      /* the transactional bit: set while its transaction is open here */
} seg_claim;

/* Which part of a log is durable, and who makes it so. */
typedef struct seg_commit {
    uint32_t word;           /* a futex; odd: C syncs. It changes at the end of each sync */
    int32_t closed;          /* 1: Python syncs, and C does not */
    int32_t *failed;         /* errno of a sync that failed */
    int64_t synced;          /* the recovery point: all below is durable */
    int32_t waiting;         /* threads that wait for the sync that is under way */
    int32_t served;          /* those that waited for the last one: each of them may come again */
    int64_t patience;        /* ns for which C lets a sync wait until one more of them is there */
} seg_commit;

typedef struct seg_tail {
    int32_t lock;
    int32_t lent;            /* 1: appends may be made */
    int32_t torn;            /* errno of a write that failed, after which bytes may lie behind the end */
    int32_t fd;              /* of the active segment's log */
    int32_t leader_epoch;
    int32_t needs_key;
    int32_t plain;           /* 1: seg_tail_append may encode; 0: the topic's records are compressed */
    const uint8_t *here;     /* 1 in this process, 0 in its children */
    uint64_t sequence;       /* odd while position and next_offset change */
    int64_t position;        /* bytes of the active segment that are the log's */
    int64_t next_offset;
    int64_t appends;         /* since it was lent */
    int64_t base_offset;     /* of the active segment */
    int64_t most_position;   /* segment.bytes */
    int64_t largest_batch;
    int64_t rolled_ms;       /* timestamp of the segment's first batch */
    int64_t young_ms;        /* a batch that is later than that by more needs another look */
    int64_t before_ms;       /* how far from the clock a timestamp may be */
    int64_t after_ms;
    int64_t interval;        /* index.interval.bytes */
    seg_index_state *state;
    uint8_t *offset_index;   /* entries, and how many may be there before another look */
    int64_t offset_entries;
    int64_t offset_room;
    uint8_t *time_index;
    int64_t time_entries;
    int64_t time_room;
    uint8_t *ends;           /* the mapping of published ends, and the partition's slot and words in it */
    int64_t ends_len;
    int64_t slot;
    int64_t key;
    int64_t start_offset;
    int64_t stable_offset;   /* -1: the log end offset */
    int64_t synced;
    int64_t layout;
    int64_t claimed;         /* claims that are lent */
    seg_claim claims[SEG_CLAIMS];
    int64_t (*write)(int32_t fd, const uint8_t *buf, int64_t len, int64_t position); /* NULL: seg_pwrite */
    int64_t (*sync)(int32_t fd, int32_t *failed); /* NULL: seg_fdatasync; SEG_SLOW: not tried */
    seg_commit *commit;
    int64_t flush_messages;  /* 0: none */
    int32_t log_only;        /* 1: once the active log is synced, all below its end is durable */
    int32_t follows;         /* 1: of a replica that takes only what its leader's tail hands on */
    int32_t n_followers;     /* tails that get all that is appended to this one, before readers see it */
    struct seg_tail *followers[SEG_FOLLOWERS];
    int64_t unshown_bytes;   /* behind position, next_offset: appended here, but not to all replicas */
    int64_t unshown_offsets;
    int32_t late;            /* 1: a flush that flush.messages asked for was left to Python */
    int64_t high_watermark;  /* -1: next_offset */
    int64_t seen_offset;     /* up to where readers see: the lesser one of both */
    int32_t apart;           /* appends still to come that let go of the interpreter's lock (tail_append.c) */
    struct seg_job *job;     /* of a follower that is written by its directory's thread; NULL: by the appender */
    int32_t unsettled;       /* 1: nobody has seen yet how that thread's write has ended */
    int32_t hands_over;      /* 1: a follower has a job, so what is appended is no larger than a job may be */
    int32_t spins;           /* 1: there is a processor for the appender, and for each of those threads */
} seg_tail;

enum { SEG_ONE_ROOM = 16384 }; /* bytes of the largest batch that seg_tail_append writes */
enum { SEG_HANDED = 1024, SEG_HANDED_ROOM = 2097152 }; /* batches that a job has at most, and their bytes */

/* A record to append. A length of -1: null. `headers` is what a record's bytes end with: the number of its headers,
 * then name and value of each. */
typedef struct seg_record {
    const uint8_t *value;
    const uint8_t *key;
    const uint8_t *headers;
    int64_t value_len;
    int64_t key_len;
    int64_t headers_len;
    int64_t timestamp;       /* ms, or SEG_NOW */
} seg_record;

/* Append a record as a batch of its own, index it, publish the end, and flush, if it is due and C may; only where
 * its offset is the `expected` one, -1: any. `b` has producer id, epoch, sequence and attributes of that batch, and
 * gets its other fields; NULL: no producer with an id wrote it. Returns its offset; SEG_SLOW; -errno: the tail is
 * torn, and lent no more; SEG_BEHIND: it is appended at next_offset, but a follower lacks it, and readers don't see
 * it: next_offset stays, and the tail is lent no more. */
int64_t seg_tail_append(seg_tail *t, const seg_record *r, int64_t expected, int64_t now, seg_batch *b);
/* Append n encoded batches of one producer, `len` bytes in all; these get their offsets and positions. `now`
 * is the clock (ms), or SEG_NOW. Returns the first offset; else as seg_tail_append. */
int64_t seg_tail_write(seg_tail *t, uint8_t *buf, int64_t len, seg_batch *batches, int64_t n, int64_t now);
/* Encode n records into batches that end at the cuts, none above `piece` bytes, and append these, in pieces of up to
 * that many bytes: seg_encode_cut into `out`, then seg_tail_write, for each piece. `batches` has room for one more
 * than there are cuts. Returns 0 when all are appended; else what the call behind the last piece has returned. *done
 * batches, *size bytes of them, are appended, and have their offsets. */
int64_t seg_tail_encode(seg_tail *t, const seg_column *keys, const seg_column *values,
                        const seg_header_columns *headers, const int64_t *timestamps, int64_t n,
                        const int64_t *cuts, int64_t n_cuts, const seg_template *of, uint8_t *out, int64_t piece,
                        seg_batch *batches, int64_t now, int64_t *done, int64_t *size);
/* seg_check_batch, then seg_tail_write of that batch, where it needs no other look: it is not compressed, and its
 * largest timestamp is the one that its header has. *h gets its header, and offset and position; its size is 0
 * where the check was not made, or found anything. */
int64_t seg_tail_take(seg_tail *t, uint8_t *batch, int64_t len, const seg_rules *rules, int64_t now, seg_batch *h);
/* Append batches as a leader wrote them, under the tail's leader epoch, by no producer with an id, from next_offset
 * on; show the log up to the leader's high watermark, where that is higher. `batches` has room for `most`, and gets
 * their headers. Returns next_offset behind them; SEG_SLOW also where anything is damaged; -errno as
 * seg_tail_append. */
int64_t seg_tail_follow(seg_tail *t, const uint8_t *buf, int64_t len, int64_t high_watermark, seg_batch *batches,
                        int64_t most);
/* Show the log up to a higher high watermark, if the tail is lent, and has one: 1; else 0; -EINTR for a signal. */
int64_t seg_tail_show(seg_tail *t, int64_t high_watermark);
/* Let appends begin; all other fields are set by then. */
void seg_tail_begin(seg_tail *t);
/* Let no append begin any more, and wait for one that is under way, on a follower's disk too: 0, or -EINTR for a
 * signal. */
int64_t seg_tail_stop(seg_tail *t);
/* Let no append begin any more, and wait for nothing: 1; 0 where one is under way, which may still end. */
int64_t seg_tail_quit(seg_tail *t);
/* Publish how much is synced, if the tail is lent: 1; 0 where it is not; -EINTR for a signal. */
int64_t seg_tail_synced(seg_tail *t, int64_t synced);
/* The next offset, the position that belongs to it, and the seen offset of the same moment. SEG_SLOW in a child that
 * was forked meanwhile. */
int64_t seg_tail_end(const seg_tail *t, int64_t *position, int64_t *seen);

/* --- hand_over.c: the thread of a directory that writes for followers' tails -------------------------------------- */
/* Both are C's own memory, since a write may outlive all that Python knows of it: who started or made one lets go of
 * it once, and the last one frees it. */
typedef struct seg_disk_thread seg_disk_thread;
typedef struct seg_job seg_job;

/* Start a thread; NULL where there can't be one. */
seg_disk_thread *seg_disk_thread_start(void);
/* Have the thread end behind what was posted, and wait for that: 1; 0 after timeout_ns, or at a signal. May be
 * repeated. */
int64_t seg_disk_thread_end(seg_disk_thread *d, int64_t timeout_ns);
void seg_disk_thread_free(seg_disk_thread *d);
/* A job of a tail that this thread writes for; NULL without memory. */
seg_job *seg_job_new(seg_disk_thread *d);
void seg_job_free(seg_job *j);

/* --- processor.c ------------------------------------------------------------------------------------------------- */
/* The number of the processor on which this thread runs; -1: not known, as on macOS. */
int32_t seg_processor(void);
/* Have the kernel move this thread from that processor to another one that it may use: 0; -1 where there is none. */
int32_t seg_leave_processor(int32_t number);

/* --- commit.c: group commit ------------------------------------------- */
/* Return when all below offset `upto` is durable: 0; 1: readers were not told of it. Else -EINTR for a signal,
 * or SEG_SLOW: Python must sync, or has to tell of a sync that failed. */
int64_t seg_tail_flush(seg_tail *t, int64_t upto);
/* Whether seg_tail_flush would sync now, and not leave it to Python. */
int64_t seg_tail_syncs(const seg_tail *t);
/* Wait for the end of a sync: 1; 0 where none is under way; SEG_SLOW after a second, -EINTR for a signal. */
int64_t seg_commit_wait(seg_commit *c);
/* Let no sync of C's begin, and wait for one that is under way: 0, or -EINTR for a signal; then let them. */
int64_t seg_commit_close(seg_commit *c);
void seg_commit_open(seg_commit *c);

/* --- follow.c -------------------------------------------------------- */
/* Wait as seg_await_ends. If the partition's last record is the one with its `offset`, alone in a plain, sound
 * batch of at most SEG_LAST_ROOM bytes, that is *f->last, and the next one is expected behind it. Else, or
 * where the read fails, the size is 0. */
int64_t seg_await_record(seg_follower *f, uint32_t nudges, int64_t timeout_ns);

/* What stat(2) tells; times in ns since the epoch. `allocated` is the size of the file's blocks in bytes. */
typedef struct seg_status {
    uint64_t inode;
    int64_t mode, size, links, modified, changed, allocated;
} seg_status;

/* --- descriptors.c: a slot is two descriptors that Python's memory owns, -1 for none; 0, -errno --- */
/* Open a file, and put what fstat(2) tells of it into *found, where that is not NULL. */
int64_t seg_open(int32_t *slot, const char *path, int32_t flags, int32_t mode, seg_status *found);
int64_t seg_open_pipe(int32_t *slot); /* read end, write end */
/* What tells of files renamed into a directory. */
int64_t seg_watch(int32_t *slot, const char *directory);
/* Close what is open; -errno of the first that fails, and all are closed then, too. */
int64_t seg_close(int32_t *slot);

/* --- io.c: full loops over the system calls; -errno on failure ------------ */
int64_t seg_pwrite(int fd, const uint8_t *buf, int64_t len, int64_t offset);
int64_t seg_pwritev(int fd, const uint8_t *const *bufs, const int64_t *lens, int64_t n, int64_t offset);
int64_t seg_pread(int fd, uint8_t *buf, int64_t len, int64_t offset); /* short only at the end of the file */
/* *failed, where that is not NULL, gets errno on failure, and nothing else sets it. */
int64_t seg_fdatasync(int fd, int32_t *failed);

/* What stat(2) tells: 0. */
int64_t seg_fstat(int fd, seg_status *out);
int64_t seg_stat(const char *path, int32_t follow, seg_status *out);
/* Three numbers that no copy of a file has: its device, its inode, and the time of its birth in ns; if the system does
 * not tell that, of the last change of its bytes or names with or_change, else 0. A link is not followed. 0, -errno. */
int64_t seg_which(const char *path, int32_t or_change, int64_t *out);
/* The path without links, as realpath(3), at most 4,096 bytes with the zero behind it. 0, -errno. */
int64_t seg_realpath(const char *path, char *out);
/* Have the kernel begin to write what is dirty of these bytes; a later seg_fdatasync waits for it. */
int64_t seg_start_sync(int fd, int64_t offset, int64_t len);
int64_t seg_fallocate(int fd, int64_t offset, int64_t len);
/* Put a shared mapping of the file's first len bytes in place of the anonymous mapping of
 * len bytes at `address`: Python's mmap would keep a descriptor open for each. 0. */
int64_t seg_map(void *address, int64_t len, int fd, int32_t write);
/* Walk batch headers of a file from `position` (below `end`) to the batch that holds
 * `target` or the first after it; its header goes to out. 1 found, 0 none below end,
 * -errno; with out->position a header that can't be one: -(10100 + SEG_BAD_*), or a
 * batch that is not whole below end (or that the file ends in): -(10100 + SEG_SHORT). */
int64_t seg_seek(int fd, int64_t position, int64_t end, int64_t target, seg_batch *out);
/* Headers of up to n batches that lie side by side from `position` on, whole within `end`, and whose offsets rise
 * from `least` on, each read by itself: how many. Fewer where a batch is none, or can't be read. */
int64_t seg_read_headers(int fd, int64_t position, int64_t end, int64_t least, seg_batch *out,
                         int64_t n);
/* All attributes, one or the other, of the batches that lie side by side from `position` to `end`, and SEG_OLD where
 * one has magic 0 or 1; -errno, or as seg_seek where one can't be a batch. */
enum { SEG_OLD = 65536 };
int64_t seg_attributes(int fd, int64_t position, int64_t end);
/* Copies bytes from file to file: how many, fewer at the end of the source; blocks are shared where both positions
 * lie on blocks and the file system can. An error that comes behind some bytes is left to the next call. */
int64_t seg_copy_range(int out, int64_t out_offset, int in, int64_t offset, int64_t count);

typedef struct seg_found {
    int64_t position;       /* of the first batch */
    int64_t stop;           /* behind the last one */
    int64_t next_offset;    /* behind the last one */
    int64_t reads;          /* calls of pread */
    int64_t first;          /* bytes of the first batch; 0: next_offset is told by the batch behind the last one */
    int64_t final;          /* 1: for as many bytes it is the same, whatever is appended; 0: not known */
} seg_found;

/* Whole batches one after the other: from the one that holds `offset` on, of max_bytes in all, at least that one,
 * below byte `end` and offset end_offset. The segment's offset index has n entries. `from`: where a batch begins
 * that is not behind the first one; -1: the index tells. 1; 0 where there is no such batch, or the index or a
 * header is not what it must be. */
int64_t seg_find_stretch(int fd, const uint8_t *index, int64_t n, int64_t base_offset, int64_t end,
                         int64_t end_offset, int64_t from, int64_t offset, int64_t max_bytes, seg_found *out);

/* --- point.c: single records by offset --------------------------------- */
/* What a reader of single records works with: one call at a time. Of an earlier read it remembers one batch. */
typedef struct seg_point {
    uint8_t *buffer;        /* batches are read into these `room` bytes */
    int64_t room;
    int64_t of_batch;       /* the number of the segment of `batch` */
    int64_t reads;          /* calls of pread, counted on and on */
    seg_batch batch;        /* read last; size 0: none yet */
    int64_t batch_at;       /* where it begins in the buffer */
    /* The record that was found. Positions in the buffer; the end of what is null is -1. */
    int64_t offset, timestamp, key_at, key_end, value_at, value_end;
    int64_t headers_at, headers_end; /* from the count of headers on; the end is -1 where there are none */
} seg_point;

/* Records that were found, one after the other. */
typedef struct seg_points {
    uint8_t *arena;         /* `room` bytes for keys, values and headers, of which `used` are used */
    int64_t room, used;
    int64_t *rows;          /* a matrix as seg_decode's columns, each `stride` numbers behind the one before */
    int64_t stride;
    int64_t records;        /* columns used */
    seg_batch *batches;     /* their batches: room for as many as there are offsets */
    int64_t n_batches;
    int64_t with_headers;
} seg_points;

/* Read the record at `offset` of a segment, or the first one behind it in its batch: 1. `segment` is a number that
 * no other segment has, and not 0; its offset index has n entries; it is visible below byte `end` and offset
 * end_offset. 0, and nothing was found, where anything is not as it is nearly always: the batch may be compressed
 * or damaged, larger than the buffer or a control batch; it may have no such record; the index may be wrong, or
 * the disk refuse to read. Records behind the one that is found are not looked at. */
int64_t seg_read_one(int fd, int64_t segment, const uint8_t *index, int64_t n, int64_t base_offset, int64_t end,
                     int64_t end_offset, int64_t offset, seg_point *p);
/* The same for rising offsets: as many of the first of these as were found, and had room. */
int64_t seg_read_many(int fd, int64_t segment, const uint8_t *index, int64_t n, int64_t base_offset, int64_t end,
                      int64_t end_offset, const int64_t *offsets, int64_t n_offsets, seg_point *p,
                      seg_points *out);

/* --- range.c: many records from an offset on ----------------------------- */
/* A segment as far as its reader may see it: below byte `end` and offset `below`. Its offset index has n entries;
 * `segment` is a number that no other segment has, and not 0. */
typedef struct seg_within {
    int64_t segment;
    const uint8_t *index;
    int64_t n, base_offset, end, below;
} seg_within;

/* What a reader of ranges works with: one call at a time. Of an earlier read it remembers where that ended. */
typedef struct seg_range {
    seg_batch *batches;     /* the headers of what was read: there is room for `room` */
    int64_t room;
    int64_t of_segment, next_offset, next_position; /* where the next batch begins; of_segment 0: not known */
    int64_t left;           /* a segment that is left to the long way: it has compressed batches, or too many */
    int64_t reads;          /* calls of pread for batches, counted on and on */
    int64_t position;       /* of the first batch */
    int64_t n_batches, records;
    int64_t with_headers;   /* records that have at least one header */
    int64_t attributes;     /* of all batches, or-ed */
} seg_range;

/* Read `size` bytes of a segment, from the batch on that holds `offset`, and the columns of the records of all whole
 * batches in them that begin below offset `limit`: 1. `rows` is a matrix of columns as seg_decode has them, each
 * `stride` numbers behind the one before; where r->records is above `stride`, they are not all set. 0, and nothing was
 * found, where anything is not as it is nearly always: fewer bytes may be there, the first batch be larger, a batch be
 * compressed, damaged or of an older magic, the offset lie in a gap, the index be wrong, or the disk refuse to
 * read. */
int64_t seg_read_range(int fd, const seg_within *w, int64_t offset, int64_t limit, int32_t check_crcs, uint8_t *bytes,
                       int64_t size, int64_t *rows, int64_t stride, seg_range *r);

/* --- transfer.c: from a file to a sink, one system call each: what it gives, -errno ----------------- */
enum { SEG_SINK_OTHER = 0, SEG_SINK_FILE = 1, SEG_SINK_PIPE = 2, SEG_SINK_TCP = 3, SEG_SINK_UNIX = 4 };

typedef struct seg_sink {
    int32_t kind;           /* SEG_SINK_*; TCP, UNIX: stream sockets */
    int32_t appends;        /* a file that was opened with O_APPEND */
    int32_t options;        /* calls of getsockopt that it took */
} seg_sink;

/* What a descriptor is. 0, -errno. */
int64_t seg_look_at(int fd, seg_sink *sink);
int64_t seg_sendfile(int out, int in, int64_t offset, int64_t count);

/* A segment as far as it may be sent. */
typedef struct seg_sendable {
    const uint8_t *index;   /* this and the next four: what seg_find_stretch takes */
    int64_t n, base_offset, end, end_offset;
    int64_t below;          /* all its offsets are; where that is less than end_offset, another segment follows */
    int64_t next_offset, next_position; /* where the last stretch ended: that offset's batch begins there, if any does */
    const uint8_t *here;    /* 1 in the one process that may send it, 0 in its children; NULL: any may */
    int64_t segment;        /* a number under which no other bytes are ever seen; 0: nothing is remembered of it */
} seg_sendable;

/* What seg_send_stretch gives besides bytes and errors. SEG_SLOW: nothing was sent, and the caller has to look;
 * SEG_PART - n: n bytes of the stretch were sent, fewer than all. */
enum { SEG_PART = -65537 };

/* seg_find_stretch by the index, or from memory where the stretch was found before, then seg_sendfile of it: (bytes << 32 | next offset - offset), SEG_SLOW,
 * SEG_PART - bytes, -errno of sendfile. Any threads may send at once: they change next_offset and next_position only.
 * SEG_SLOW also where the stretch may go on in the next segment, and in another process. *found (NULL:
 * not wanted) gets the stretch, or what was read in search of it. */
int64_t seg_send_stretch(int sink, int fd, seg_sendable *s, int64_t offset, int64_t max_bytes, seg_found *found);

/* One of the two is a pipe; offset -1 where `in` is. `more`: bytes follow at once. */
int64_t seg_splice(int in, int64_t offset, int out, int64_t count, int32_t more);
/* Give a pipe room for so many bytes: what it has then. */
int64_t seg_pipe_bytes(int pipe, int64_t bytes);
int64_t seg_write(int out, const uint8_t *buf, int64_t len);
/* To the file that `out` is, where it stands, which moves on. */
int64_t seg_append_range(int out, int in, int64_t offset, int64_t count);

/* A mapped part of a file; zeros: none. */
typedef struct seg_window {
    uint8_t *memory;        /* of the whole mapping */
    int64_t mapped;         /* bytes of it */
    int64_t position;       /* of its first byte in the file */
} seg_window;

/* Map whole pages, with at least the `count` > 0 bytes from `position` on. The window must have none. 0. */
int64_t seg_map_window(seg_window *w, int fd, int64_t position, int64_t count);
int64_t seg_unmap_window(seg_window *w);
/* write(2) of count bytes from `position` of the file on, which the window has. -EFAULT: the file has no such
 * bytes any more. */
int64_t seg_write_window(int out, const seg_window *w, int64_t position, int64_t count);

/* --- exchange.c: a request that is like an earlier one of its connection: received, done, answered ---- */
typedef struct seg_exchange {
    uint8_t *room;          /* requests are received here, at the front; an answer is put behind its request */
    int64_t room_len;
    const uint8_t *asked;   /* the earlier request without its size, of produce up to the length of its batch; 8 bytes
                             * at least. Others may have another correlation id, of fetch another offset. */
    int64_t asked_len;
    int64_t offset_at;      /* fetch: where the request has its offset */
    int64_t epoch_at;       /* seg_exchange_next: where it has its session's epoch, before that */
    int64_t epoch;          /* which is to be this one */
    const uint8_t *answer;  /* with its size; of fetch up to the length of the records */
    int64_t answer_len;
    int64_t told_at;        /* where it has `n_told` int64s; of produce base offset, append time, log start offset; of
                             * fetch high watermark, last stable offset, log start offset */
    int64_t n_told;         /* produce: 3 */
    const uint8_t *behind;  /* fetch: what comes behind the records */
    int64_t behind_len;
    int64_t most;           /* fetch: bytes of batches that are wanted, */
    int64_t least;          /* without which there is no answer yet, */
    int64_t longest;        /* and that are copied into the answer */
    int32_t compact;        /* 1: lengths are varints, and there are tagged fields */
    int32_t committed;      /* 1: what a batch of a transaction is answered needs another look */
    int64_t received;       /* bytes that came, 0: no more will come; -errno */
    int64_t answered;       /* bytes of the answer; 0: there is none yet */
    int64_t sent;           /* of these, by now */
} seg_exchange;

/* Receive once, and do a request that is like the earlier one, if nothing else has come; the socket is not waited
 * for. SEG_SLOW: nothing was done but that (the request may be another one, or not whole). */

/* seg_tail_take of the only batch, which has no codec. Its base offset; else as seg_tail_take. */
int64_t seg_exchange_produce(int sock, seg_exchange *x, seg_tail *t, const seg_rules *rules, int64_t now, seg_batch *h);
/* seg_find_stretch, and its bytes. Their number. */
int64_t seg_exchange_fetch(int sock, seg_exchange *x, int fd, const seg_sendable *s, int64_t start, int64_t stable);

/* A fetch in the epoch that is expected. Its offset. */
int64_t seg_exchange_next(int sock, seg_exchange *x);
/* Answer a fetch with whole batches, which lie at `position` to `stop`; `ends` are the n_told numbers, and `number` is
 * the correlation id. Their bytes; SEG_SLOW: nothing was sent. */
int64_t seg_exchange_give(int sock, seg_exchange *x, int fd, int64_t position, int64_t stop, const int64_t *ends,
                          const uint8_t *number);

/* --- zerocopy.c: MSG_ZEROCOPY ------------------------------------------------------------------ */
/* Set SO_ZEROCOPY of a socket: what it was before, -errno. */
int64_t seg_zerocopy(int fd, int32_t on);
/* Whether a TCP socket may have it: 0, -errno. */
int64_t seg_zerocopy_probe(void);
/* send(2) from a window, as seg_write_window; never a SIGPIPE. The window stays until its notices have come. */
int64_t seg_send_zerocopy(int out, const seg_window *w, int64_t position, int64_t count);

typedef struct seg_noticed {
    int64_t sends;          /* whose pages the kernel needs no more */
    int64_t copied;         /* of these, whose bytes it has copied after all */
    int64_t calls;          /* of recvmsg */
} seg_noticed;

/* Read the notices that have come, without waiting: out->sends, -errno. */
int64_t seg_notices(int fd, seg_noticed *out);

/* --- uring.c: io_uring's send_zc ------------------------------------------------------------------ */
typedef struct seg_ring {
    int32_t open, fd;
    uint8_t *rings, *sqes;  /* mapped */
    int64_t rings_len, sqes_len;
    uint32_t sq_tail, sq_mask, sq_array, cq_head, cq_tail, cq_mask, cqes; /* where they are in rings */
    int32_t awaited;        /* 1: the request's result, 2: its notice */
    int32_t unsubmitted;
    int64_t result;
    int64_t enters;         /* calls of io_uring_enter */
    int64_t registers;      /* calls of io_uring_register */
    int64_t notices;        /* that the kernel needs a request's pages no more */
    int64_t copied;         /* of these, whose bytes it has copied after all */
} seg_ring;

/* Make a ring. 0, -errno; nothing is left of it then. */
int64_t seg_ring_open(seg_ring *r);
/* Cancel what is under way, and let go of the ring, if it is open. */
int64_t seg_ring_close(seg_ring *r);
/* Whether there are rings that can send_zc: 0, -errno. */
int64_t seg_ring_probe(void);
/* Send from a window, and wait until the kernel needs it no more: bytes sent, -errno. After -EINTR the same call
 * goes on with what is under way. */
int64_t seg_ring_send(seg_ring *r, int out, const seg_window *w, int64_t position, int64_t count);

/* --- staging.c ------------------------------------------------------- */
/* Give the batches in the first `end` bytes of a file, whatever offsets they have, those from base_offset
 * on and a leader epoch: 12 bytes a batch, outside its CRC. The next offset; -errno, or SEG_E_COLUMN at
 * what is no header of a whole batch (those before it have theirs then). */
int64_t seg_restamp(int fd, int64_t end, int64_t base_offset, int32_t leader_epoch);
/* Wait until anything was renamed into a directory that is watched, or it was stopped: 1; 0 after timeout_ms
 * or at a signal; -errno. */
int64_t seg_watch_wait(int fd, int32_t timeout_ms);
/* End the wait, also the next one. 0, -errno. */
int64_t seg_watch_stop(int fd);
/* Wait until seg_wake_sealers is called: 0; -ETIMEDOUT, or -EINTR for a signal. Publications wake nobody here.
 * `map` is that of seg_publish; one that can only be read will do, for both calls. */
int64_t seg_await_adoption(const uint8_t *map, int64_t len, int64_t timeout_ns);
/* Let all sealers return that wait now: how many did; -errno. */
int64_t seg_wake_sealers(const uint8_t *map, int64_t len);

/* --- murmur2.c ------------------------------------------------------- */
/* Kafka's hash of n keys, its sign bit off; -1 for a null key. n, or SEG_E_COLUMN. */
int64_t seg_murmur2(const seg_column *keys, int64_t n, int32_t *out);

/* --- compact.c: the log cleaner's map of keys, and batches without superseded records ------------- */
typedef struct seg_offset_map {
    uint8_t *slots;         /* n slots of 24 bytes, aligned to 8: 128 bits of hash, offset; zeros: free */
    int64_t n;
    int64_t limit;          /* keys that it may hold: below n */
    int64_t used;           /* keys that it holds */
    uint64_t seed[2];
} seg_offset_map;

/* Rows of decoded batches, as seg_decode gives them. */
typedef struct seg_columns {
    const int64_t *offsets, *timestamps, *key_at, *key_len, *value_at, *value_len, *headers_at;
    int64_t n;
} seg_columns;

/* What seg_map_keep says of a record. */
enum {
    SEG_DROP = 0,           /* its key has a later one, or it has none */
    SEG_LATEST = 1,         /* the latest of its key: stays unless it is a tombstone whose time has come */
    SEG_KEEP = 2
};

/* What may become of a batch, whatever its keys say. */
enum {
    SEG_NO_RECORDS = 1,     /* none stays: of an aborted transaction, or a spent marker */
    SEG_ALL_RECORDS = 2,    /* all stay: markers */
    SEG_RETAIN_EMPTY = 4,   /* without records it stays as a header */
    SEG_SPENT_MARKER = 8    /* of a transaction that has no records any more: its delete horizon begins */
};

/* How a batch was put out. */
enum { SEG_COPIED = 0, SEG_EMPTIED = 1, SEG_REWRITTEN = 2 };

typedef struct seg_cleaning {
    int64_t now;            /* ms: tombstones and markers whose delete horizon has come by then go */
    int64_t new_horizon;    /* ms: what a batch gets that has its first tombstone seen */
    int64_t batches;        /* put out */
    int64_t records;        /* in these */
    int64_t changed;        /* batches that are not as they were, or not there */
    int64_t records_before; /* seg_compact_stretch: looked at */
    int64_t keyless;        /* seg_compact_stretch: of these, gone for want of a key */
} seg_cleaning;

/* Some of a .log file, and memory to work in, of which nothing is kept from call to call. */
typedef struct seg_stretch {
    int32_t fd;
    int64_t position;       /* of the first batch that is to be looked at; moves on behind what was done */
    int64_t end;
    int64_t least;          /* no batch begins below this offset; moves on too */
    uint8_t *raw;           /* a window of the file */
    int64_t raw_len;
    seg_batch *batches;     /* and policies, codecs, made: room for max_batches */
    uint8_t *policies, *codecs, *made;
    int64_t max_batches;
    int64_t *rows;          /* 7 columns of max_rows */
    uint8_t *keep;          /* max_rows */
    int64_t max_rows;
} seg_stretch;

/* SipHash-2-4 of 128 bits: two words of seed, two of hash. */
void seg_siphash(const uint8_t *p, int64_t len, const uint64_t *seed, uint64_t *hash);

/* Put the keys of n records into the map, with the largest offset of each; records without a key or
 * below from_offset are passed over. Stops before a key that it may not take any more: the records
 * taken, SEG_E_COLUMN, -EINVAL for a map that can't be. */
int64_t seg_map_put(seg_offset_map *m, const uint8_t *arena, int64_t arena_len, const int64_t *key_at,
                    const int64_t *key_len, const int64_t *offsets, int64_t n, int64_t from_offset);

/* What stays of n records: keep[i] is SEG_DROP, SEG_LATEST or SEG_KEEP (above offset `latest`, up to which
 * the map tells). *keyless grows by those that go for want of a key. Returns how many stay; errors as put. */
int64_t seg_map_keep(const seg_offset_map *m, const uint8_t *arena, int64_t arena_len, const int64_t *key_at,
                     const int64_t *key_len, const int64_t *offsets, int64_t n, int64_t latest,
                     uint8_t *keep, int64_t *keyless);

/* Put n batches out as compaction leaves them. raw holds them as they are in their file, from raw_position
 * on; their rows, in order, are in columns, what stays of them in keep. A batch of which nothing changes
 * is copied; another keeps base and last offset, producer and leader epoch, gets codecs[i] into its
 * attributes, and its records plain, with a CRC only where the codec is none: the caller compresses and
 * seals. out_batches and made have room for n; positions count from out. Returns bytes; SEG_E_ROOM,
 * SEG_E_COLUMN, SEG_E_TOO_LARGE, SEG_E_RECORD, SEG_E_VARINT. */
int64_t seg_compact(const uint8_t *raw, int64_t raw_len, int64_t raw_position, const uint8_t *arena,
                    int64_t arena_len, const seg_batch *batches, const uint8_t *policies,
                    const uint8_t *codecs, int64_t n, const seg_columns *columns, seg_cleaning *how,
                    uint8_t *keep, uint8_t *out, int64_t capacity, seg_batch *out_batches, uint8_t *made);

/* --- stretch.c: the same over a long stretch of a file at a call ----------------------------------- */
/* Both stop at s->end, or before the first batch that is compressed, of a transaction, a marker, damaged,
 * or larger than the window: s->position tells. */

/* Put the keys of plain batches into the map, unless it becomes full within a window: that one is left.
 * Bytes of the file that were passed; -errno of reading, errors of seg_map_put. */
int64_t seg_map_stretch(seg_offset_map *m, seg_stretch *s, int64_t from_offset);

/* seg_map_keep and seg_compact of plain batches, until out (of 2 windows at least) has no room for one more
 * window. Batches whose last offset is among `retained`, which rise, stay without records. Bytes in out,
 * whose batches are out_batches (room for max_out); how has the sums. -errno, errors of seg_compact. */
int64_t seg_compact_stretch(const seg_offset_map *m, int64_t latest, seg_stretch *s, const int64_t *retained,
                            int64_t n_retained, seg_cleaning *how, uint8_t *out, int64_t capacity,
                            seg_batch *out_batches, int64_t max_out);
