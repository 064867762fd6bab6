/* Published ends of partitions, and the wait for them (ends.c, follow.c). */
#ifndef SEG_CONTRACT_ENDS_H
#define SEG_CONTRACT_ENDS_H

#include <stdint.h>

/* The file of a store that several processes append to, mapped; NULL in its place: the store is not shared, or this is
 * not known yet. Then the ends of a partition are those of its slot; else those of the shared log with the slot's number,
 * if that has the slot's key and an end (seg_shared_ends). */
typedef struct seg_shared_map {
    const uint8_t *map;
    int64_t len;             /* SEG_SHARED_LOGS at least */
} seg_shared_map;

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
int64_t seg_nudges(const uint8_t *map, int64_t len, const seg_shared_map *shared);
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
int64_t seg_follow(const uint8_t *map, int64_t len, const seg_shared_map *shared, seg_followed *f, int64_t spins);
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
    const seg_shared_map *shared;
} seg_follower;
/* Wait until one of n slots differs from what is known of it, and make that known: its number. n: seg_nudge
 * was called, or by this process seg_rouse. -EAGAIN as seg_snapshot, or a damaged slot; -ETIMEDOUT, -EINTR
 * as seg_await; a timeout of 0 is a look without a system call. Publications of other partitions cost a look
 * at the n slots, and are no reason to return. */
int64_t seg_await_ends(seg_follower *f, uint32_t nudges, int64_t timeout_ns);
/* A consistent copy of n slots' values; -EAGAIN where a publication is under way after `spins` tries, unless all
 * n are those of shared logs: a host that dies leaves nothing to wait for there.
 * The key of a slot whose check is wrong is SEG_ENDS_DAMAGED. */
int64_t seg_snapshot(const uint8_t *map, int64_t len, const seg_shared_map *shared, const int64_t *slots,
                     int64_t *values, int64_t n, int64_t spins);

/* What a reader has seen of one slot. */
typedef struct seg_seen {
    const uint8_t *map;
    int64_t len, slot;
    int64_t generation;     /* of the slots: the int64 at map[24:32] */
    int64_t values[8];      /* as seg_snapshot gave them */
    const seg_shared_map *shared;
} seg_seen;
/* Whether that is so still: 1; 0 where it is not, or where a publication under way may be changing it. */
int32_t seg_unchanged(const seg_seen *seen);

/* --- follow.c -------------------------------------------------------- */
/* Wait as seg_await_ends. If the partition's last record is the one with its `offset`, alone in a plain, sound
 * batch of at most SEG_LAST_ROOM bytes, that is *f->last, and the next one is expected behind it. Else, or
 * where the read fails, the size is 0. */
int64_t seg_await_record(seg_follower *f, uint32_t nudges, int64_t timeout_ns);

#endif
