/* The end of a log: appends and syncs there (append.c, tail.c, commit.c). */
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
enum { SEG_NOW = -65538 };  /* in place of a time in ms: that of the clock */
enum { SEG_FOLLOWERS = 8 };

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

/* Syncs a file as seg_fdatasync does (file.h); SEG_SLOW: not tried. */
typedef int64_t (*seg_syncer)(int32_t fd, int32_t *failed);

typedef struct seg_tail {
    seg_active *active;
    int32_t lock;
    int32_t open;            /* 1: appends may be made; else whoever holds the append token changes what is here */
    int32_t torn;            /* errno of a write that failed, after which bytes may lie behind the end */
    int32_t fd;              /* of the active segment's log; -1: not open */
    int32_t leader_epoch;
    int32_t fenced_below;    /* no append is made under a leader epoch below this one: another replica was elected */
    int32_t needs_key;
    int32_t plain;           /* 1: seg_tail_append may encode; 0: the topic's records are compressed */
    int32_t stamps;          /* 1: the clock is the time of all that is appended, but by seg_tail_follow (LogAppendTime) */
    const uint8_t *here;     /* 1 in this process, 0 in its children */
    uint64_t sequence;       /* odd while the next three, and stable_offset, change */
    int64_t shown_position;  /* where shown_offset begins in the active segment */
    int64_t shown_offset;    /* all below was shown: followers may fetch it; -1 while Python changes what readers see */
    int64_t seen_offset;     /* up to where readers see: shown_offset, or a lower high watermark; or -1, as above */
    int32_t hidden;          /* 1: the log goes on behind shown_offset, since a follower lacks that */
    int64_t appends;         /* since it was opened */
    int64_t largest_batch;
    int64_t before_ms;       /* how far from the clock a timestamp may be */
    int64_t after_ms;
    uint8_t *ends;           /* the mapping of published ends, and the partition's slot and words in it */
    int64_t ends_len;
    int64_t slot;
    int64_t key;
    int64_t start_offset;
    int64_t stable_offset;   /* the last stable offset; -1: seen_offset */
    int64_t synced;
    int64_t layout;
    seg_producers *producers; /* of the partition; NULL: none is known */
    int64_t now;             /* the clock (ms) of the append that is under way, or SEG_NOW */
    seg_writer write;        /* NULL: seg_pwritev */
    seg_syncer sync;         /* NULL: seg_fdatasync */
    seg_commit *commit;
    int64_t flush_messages;  /* 0: none */
    int64_t names;           /* counts changes of what is to be synced beside the active segment's log */
    int64_t synced_names;    /* where `names` was when all that was synced; -1: unknown. C syncs while both are equal */
    int32_t follows;         /* 1: of a log that takes only what its leader's tail hands on, or seg_tail_follow brings */
    int32_t n_followers;     /* tails that get all that is appended to this one, before readers see it */
    struct seg_tail *followers[SEG_FOLLOWERS];
    int64_t high_watermark;  /* -1: shown_offset */
    int32_t apart;           /* appends still to come that let go of the interpreter's lock (tail_append.c) */
    struct seg_job *job;     /* of a follower that is written by its directory's thread; NULL: by the appender */
    int32_t unsettled;       /* 1: nobody has seen yet how that thread's write has ended */
    int32_t hands_over;      /* 1: a follower has a job, so what is appended is no larger than a job may be */
    int32_t spins;           /* 1: there is a processor for the appender, and for each of those threads */
    int32_t waiting;         /* threads that have an append in a slot, or had it there just now (combine.c) */
    seg_waiting *waiters[SEG_WAITERS]; /* the slots; NULL: free */
    seg_share *share;        /* of a log that other processes append to; NULL: none does (share.c) */
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
    int32_t brief;           /* 1: SEG_BUSY where the append would sleep */
} seg_record;

/* --- append.c: appends at the tail --- */
/* Append a record as a batch of its own, index it, publish the end, and flush, if it is due and C may; only where
 * its offset is the `expected` one, -1: any. `b` has producer id, epoch, sequence and attributes of that batch, and
 * gets its other fields, and the log's stamp; NULL: no producer with an id wrote it. Returns its offset; SEG_SLOW; -errno: the tail is
 * torn, and paused; SEG_BEHIND - offset: it is appended there, but a follower lacks it, and readers don't see
 * it: shown_offset stays, and the tail is paused. */
int64_t seg_tail_append(seg_tail *t, const seg_record *r, int64_t expected, int64_t now, seg_batch *b);
/* Append n encoded batches of one producer, `len` bytes in all; these get their offsets and positions, the first one
 * the `expected` offset, -1: any. `now` is the clock (ms), or SEG_NOW. With `opens` a transaction may begin with them: its
 * coordinator knows of it. Returns the first offset; else as seg_tail_append. */
int64_t seg_tail_write(seg_tail *t, uint8_t *buf, int64_t len, seg_batch *batches, int64_t n, int64_t expected,
                       int64_t now, int32_t opens);
/* Encode n records into batches that end at the cuts, none above `piece` bytes, and append these, in pieces of up to
 * that many bytes: seg_encode_cut into `out`, then an append, for each piece. `batches` has room for one more
 * than there are cuts. Nothing is appended to a log whose standby is to have it first: nobody would wait for that.
 * Returns 0 when all are appended; else what the call behind the last piece has returned. *done
 * batches, *size bytes of them, are appended, and have their offsets. */
int64_t seg_tail_encode(seg_tail *t, const seg_column *keys, const seg_column *values,
                        const seg_header_columns *headers, const int64_t *timestamps, int64_t n,
                        const int64_t *cuts, int64_t n_cuts, const seg_template *of, uint8_t *out, int64_t piece,
                        seg_batch *batches, int64_t now, int64_t *done, int64_t *size);
/* seg_check_batch, then seg_tail_write of that batch, where it needs no other look: it is not compressed, and its
 * largest timestamp is the one that its header has, or the log gives it one; and as seg_tail_encode only to a log that
 * no standby has. *h gets its header, and offset and position; its size is 0 where the check was not made, or found
 * anything. */
int64_t seg_tail_take(seg_tail *t, uint8_t *batch, int64_t len, const seg_rules *rules, int64_t now, seg_batch *h);
/* Append batches as a leader wrote them, under the tail's leader epoch, of producers that are known or of none, from
 * the log's end on; show the log up to the leader's high watermark, where that is higher. `batches` has room for `most`,
 * and gets their headers; `now` as in seg_tail_write. Returns the offset behind them; SEG_SLOW also where anything is
 * damaged; -errno as seg_tail_append. */
int64_t seg_tail_follow(seg_tail *t, const uint8_t *buf, int64_t len, int64_t high_watermark, seg_batch *batches,
                        int64_t most, int64_t now);

/* --- tail.c: what readers see, and when the tail is open --- */
/* Show the log up to a higher high watermark, if the tail is open, and has one: 1; else 0; -EINTR for a signal. */
int64_t seg_tail_show(seg_tail *t, int64_t high_watermark);
/* Let appends begin, if the log is open; all other fields are set by then: 1; else 0; -EINTR for a signal. */
int64_t seg_tail_begin(seg_tail *t);
/* Let no append begin any more, and wait for one that is under way, on a follower's disk too: 0, or -EINTR for a
 * signal. With `release` the descriptor is used no more, but by a sync that is under way. */
int64_t seg_tail_pause(seg_tail *t, int32_t release);
/* Do what seg_tail_pause does, with `release`, but wait for nothing: 1; 0 where an append is under way, which may still
 * end. Appends that wait for that one get SEG_SLOW. */
int64_t seg_tail_quit(seg_tail *t);
/* Let no append begin under a leader epoch below this one, and wait for nothing: one that is under way may still end,
 * and those that wait for it get SEG_SLOW. */
void seg_tail_fence(seg_tail *t, int32_t epoch);
/* Let readers of this process see the log up to here, if the tail is paused: 1; 0 where it is open: C knows better;
 * -EINTR for a signal. Python publishes that. */
int64_t seg_tail_look(seg_tail *t, int64_t position, int64_t shown, int64_t seen);
/* Up to where the log is durable behind *sync of *fd alone; SEG_SLOW where that is not so, or the tail is paused. If the
 * log is shared, it is *share that tells, as it was when *fd was bound (share_sync.c). */
int64_t seg_tail_to_sync(seg_tail *t, int32_t *fd, seg_syncer *sync, seg_share *share);
/* Publish how much is synced, if the tail is open: 1; 0 where it is not; -EINTR for a signal. */
int64_t seg_tail_synced(seg_tail *t, int64_t synced);
/* The shown offset, the position that belongs to it, the seen offset and the last stable offset (-1: the seen one) of
 * the same moment. SEG_SLOW in a child that was forked meanwhile. */
int64_t seg_tail_end(const seg_tail *t, int64_t *position, int64_t *seen, int64_t *stable);

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
/* The same for the tail's log, which may be shared; then no other process syncs it, too: 1, if one has died while it
 * synced. `synced` and `failed` as in seg_share_sync_end. */
int64_t seg_tail_close_syncs(seg_tail *t);
void seg_tail_open_syncs(seg_tail *t, int64_t synced, int32_t failed);

#endif
