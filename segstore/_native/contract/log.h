/* The tail of a log: appends and syncs (append.c, tail.c, commit.c). */
#ifndef SEG_CONTRACT_LOG_H
#define SEG_CONTRACT_LOG_H

#include <stdint.h>

#include "active.h"
#include "batch.h"
#include "column.h"
#include "combine.h"
#include "producers.h"
#include "records.h"
#include "rules.h"
#include "shared.h"
#include "threads.h"

/* --- the tail of a log, at which C appends while it is open ---------------------------------------- */
enum { SEG_NOW = -65538 };  /* in place of a time in ms: the clock's */
enum { SEG_FOLLOWERS = 8 };

/* The durable part of a log, and the sync that is under way. */
typedef struct seg_commit {
    uint32_t word;           /* a futex; odd: C syncs. It changes at the end of each sync */
    int32_t closed;          /* 1: Python syncs, and C does not */
    int32_t *failed;         /* errno of a sync that failed */
    int64_t synced;          /* the recovery point: all below is durable */
    int32_t waiting;         /* threads that wait for the sync that is under way */
    int32_t served;          /* threads that waited for the last sync: each may come again */
    int64_t patience;        /* ns that a sync waits for one more of these threads */
} seg_commit;

/* Syncs a file as seg_fdatasync does (file.h); SEG_SLOW: not tried. */
typedef int64_t (*seg_syncer)(int32_t fd, int32_t *failed);

typedef struct seg_tail {
    seg_active *active;
    int32_t lock;
    int32_t open;            /* 1: C may append; 0: the holder of the append token may change this struct */
    int32_t torn;            /* errno of a failed write: bytes may lie beyond the end */
    int32_t fd;              /* of the active segment's log; -1: not open */
    int32_t leader_epoch;
    int32_t fenced_below;    /* appends under lower leader epochs are refused: another replica was elected */
    int32_t needs_key;
    int32_t plain;           /* 1: seg_tail_append may encode; 0: the topic's records are compressed */
    int32_t stamps;          /* 1: LogAppendTime: the clock stamps appends, except those of seg_tail_follow */
    const uint8_t *owner;    /* 1 in the process that made the tail, 0 in its children */
    uint64_t sequence;       /* odd while the next three, and stable_offset, change */
    int64_t shown_position;  /* the position of shown_offset in the active segment */
    int64_t shown_offset;    /* all below is shown: followers may fetch it; -1 while Python changes the view */
    int64_t seen_offset;     /* the end for readers: shown_offset, or a lower high watermark; or -1, as above */
    int32_t hidden;          /* 1: the log has records above shown_offset that a follower lacks */
    int64_t appends;         /* since it was opened */
    int64_t largest_batch;
    int64_t before_ms;       /* the most ms of a timestamp before and after the clock */
    int64_t after_ms;
    uint8_t *ends;           /* the mapping of published ends; next, the partition's slot and words in it */
    int64_t ends_len;
    int64_t slot;
    int64_t key;
    int64_t start_offset;
    int64_t stable_offset;   /* the last stable offset; -1: seen_offset */
    int64_t synced;
    int64_t layout;
    seg_producers *producers; /* of the partition; NULL: none */
    int64_t now;             /* the clock (ms) of the append that is under way, or SEG_NOW */
    seg_writer write;        /* NULL: seg_pwritev */
    seg_syncer sync;         /* NULL: seg_fdatasync */
    seg_commit *commit;
    int64_t flush_messages;  /* 0: none */
    int64_t names;           /* counts changes of files other than the active segment's log */
    int64_t synced_names;    /* `names` at their last sync; -1: unknown. C syncs only if both are equal */
    int32_t follows;         /* 1: a follower's log: only its leader's tail and seg_tail_follow append */
    int32_t n_followers;     /* tails that get each append before readers see it */
    struct seg_tail *followers[SEG_FOLLOWERS];
    int64_t high_watermark;  /* -1: shown_offset */
    int32_t release_gil_for; /* the next appends that release the interpreter's lock (tail_append.c) */
    struct seg_job *job;     /* for a follower that its directory's thread writes; NULL: the appending thread writes */
    int32_t unsettled;       /* 1: the result of that thread's write was not read yet */
    int32_t hands_over;      /* 1: a follower has a job, which limits the size of an append */
    int32_t spins;           /* 1: there are processors for the appending thread and for each of those threads */
    int32_t waiting;         /* threads with an append in a slot, now or just before (combine.c) */
    seg_waiting *waiters[SEG_WAITERS]; /* the slots; NULL: free */
    seg_share *share;        /* of a log that other processes append to; else NULL (share.c) */
} seg_tail;

enum { SEG_ONE_ROOM = 16384 }; /* bytes of the largest batch that seg_tail_append writes */
enum { SEG_HANDED = 1024, SEG_HANDED_ROOM = 2097152 }; /* batches that a job has at most, and their bytes */

/* A record to append. A length of -1: null. `headers` is the last part of a record's bytes: the number of its headers,
 * then name and value of each. */
typedef struct seg_record {
    const uint8_t *value;
    const uint8_t *key;
    const uint8_t *headers;
    int64_t value_len;
    int64_t key_len;
    int64_t headers_len;
    int64_t timestamp;       /* ms, or SEG_NOW */
    int32_t brief;           /* 1: return SEG_BUSY in place of sleeping */
} seg_record;

/* --- append.c: appends at the tail --- */
/* Append a record as a batch of its own, index it, publish the end, and flush if that is due and C may sync; only if
 * its offset is `expected` (-1: any). `b` has producer id, epoch, sequence and attributes of that batch, and gets
 * its other fields, and the log's stamp; NULL: a record without a producer id. Returns its offset; SEG_SLOW; -errno:
 * the tail is torn, and paused; SEG_UNREPLICATED - offset: the record is in the log, but a follower lacks it, so
 * readers don't see it: shown_offset stays, and the tail is paused. */
int64_t seg_tail_append(seg_tail *t, const seg_record *r, int64_t expected, int64_t now, seg_batch *b);
/* Append n encoded batches of one producer, `len` bytes in all; they get their offsets and positions, the first one the
 * `expected` offset, -1: any. `now` is the clock (ms), or SEG_NOW. With `opens` a transaction may begin with them: its
 * coordinator knows of it. Returns the first offset; else as seg_tail_append. */
int64_t seg_tail_write(seg_tail *t, uint8_t *buf, int64_t len, seg_batch *batches, int64_t n, int64_t expected,
                       int64_t now, int32_t opens);
/* Encode n records into batches that end at the cuts, none above `piece` bytes, and append them in pieces of up to that
 * many bytes: for each piece seg_encode_cut into `out`, then an append. `batches` has room for one more than there are
 * cuts. Refuses a log whose standby must have the records first, since this call does not wait for it. Returns 0 if all
 * are appended; else the answer of the append that failed. *done batches, *size bytes of them, are appended, and have
 * their offsets. */
int64_t seg_tail_encode(seg_tail *t, const seg_column *keys, const seg_column *values,
                        const seg_header_columns *headers, const int64_t *timestamps, int64_t n,
                        const int64_t *cuts, int64_t n_cuts, const seg_template *of, uint8_t *out, int64_t piece,
                        seg_batch *batches, int64_t now, int64_t *done, int64_t *size);
/* Do seg_check_batch, then seg_tail_write, for a plain batch whose header has the right largest timestamp, or whose log
 * sets LogAppendTime. Refuses a log with a standby, as seg_tail_encode. *h gets its header, offset and position; its
 * size is 0 unless the batch has passed the check. */
int64_t seg_tail_take(seg_tail *t, uint8_t *batch, int64_t len, const seg_rules *rules, int64_t now, seg_batch *h);
/* Append batches as a leader wrote them, from the log's end on, under the tail's leader epoch, of known producers or of
 * none; show the log up to the leader's high watermark, if that is higher. `batches` has room for `most` headers, and
 * gets them; `now` as in seg_tail_write. Returns the offset after them; SEG_SLOW, also for damaged batches; -errno as
 * seg_tail_append. */
int64_t seg_tail_follow(seg_tail *t, const uint8_t *buf, int64_t len, int64_t high_watermark, seg_batch *batches,
                        int64_t most, int64_t now);

/* --- tail.c: the part that readers see, and the times when the tail is open --- */
/* Raise the high watermark, if the tail is open and has one: 1; else 0; -EINTR for a signal. */
int64_t seg_tail_show(seg_tail *t, int64_t high_watermark);
/* Let appends begin, if the log is open; all other fields are set before: 1; else 0; -EINTR for a signal. */
int64_t seg_tail_begin(seg_tail *t);
/* Let no append begin any more, and wait for one that is under way, on a follower's disk too: 0, or -EINTR for a
 * signal. With `release` the descriptor is not used any more, except by a sync that is under way. */
int64_t seg_tail_pause(seg_tail *t, int32_t release);
/* Pause the tail and release its descriptor, without waiting: 1; 0 if an append is under way, which may still end.
 * Appends that wait for it get SEG_SLOW. */
int64_t seg_tail_quit(seg_tail *t);
/* Let no append begin under a leader epoch below this one, without waiting: an append that is under way may still end,
 * and appends that wait for it get SEG_SLOW. */
void seg_tail_fence(seg_tail *t, int32_t epoch);
/* Set the end that readers of this process see, if the tail is paused: 1; 0 if it is open, since C then sets the end;
 * -EINTR for a signal. Python publishes that end. */
int64_t seg_tail_look(seg_tail *t, int64_t position, int64_t shown, int64_t seen);
/* The offset below which the log is durable after *sync of *fd alone; SEG_SLOW if other files need a sync, or the tail
 * is paused. For a shared log *share, as it was when *fd was bound, has the answer (share_sync.c). */
int64_t seg_tail_to_sync(seg_tail *t, int32_t *fd, seg_syncer *sync, seg_share *share);
/* Publish the recovery point, if the tail is open: 1; 0 if it is not; -EINTR for a signal. */
int64_t seg_tail_synced(seg_tail *t, int64_t synced);
/* The shown offset, its position, the seen offset and the last stable offset (-1: the seen one) of one moment. SEG_SLOW
 * in a child that was forked since. */
int64_t seg_tail_end(const seg_tail *t, int64_t *position, int64_t *seen, int64_t *stable);

/* --- commit.c: group commit ------------------------------------------- */
/* Make all below offset `upto` durable: 0; 1: the new recovery point is not published. -EINTR for a signal, or
 * SEG_SLOW: Python must sync, or raise the error of a failed sync. */
int64_t seg_tail_flush(seg_tail *t, int64_t upto);
/* Whether seg_tail_flush would sync now, and not leave it to Python. */
int64_t seg_tail_syncs(const seg_tail *t);
/* Wait for the end of a sync: 1; 0 if none is under way; SEG_SLOW after a second, -EINTR for a signal. */
int64_t seg_commit_wait(seg_commit *c);
/* Let no sync by C begin, and wait for one that is under way: 0, or -EINTR for a signal. seg_commit_open allows syncs
 * again. */
int64_t seg_commit_close(seg_commit *c);
void seg_commit_open(seg_commit *c);
/* The same for the tail's log. If it is shared, no other process syncs it, either: 1 if one has died during a sync.
 * `synced` and `failed` as in seg_share_sync_end. */
int64_t seg_tail_close_syncs(seg_tail *t);
void seg_tail_open_syncs(seg_tail *t, int64_t synced, int32_t failed);

#endif
