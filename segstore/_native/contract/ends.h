/* Published ends of partitions, and the wait for them (ends.c, await_record.c). */
#ifndef SEG_CONTRACT_ENDS_H
#define SEG_CONTRACT_ENDS_H

#include <stdint.h>

/* The mapped file of a store that several processes append to. If a pointer to this struct is NULL, the store is not
 * shared, or that is not known yet; then the ends of a partition are in its slot. In a shared store they are in the
 * shared log with the slot's number, if that log has the slot's key and an end (seg_shared_ends). */
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
/* Write n slots (8 values each, the values of layout and epoch 32 bits) with their checks, as one publication under the
 * sequence lock at map[0:8]; the int32 at map[8:12] counts publications, for waiters. One writer. */
int64_t seg_publish(uint8_t *map, int64_t len, const int64_t *slots, const int64_t *values, int64_t n);
/* Wait until the count of publications is no longer `seen`: 0; -ETIMEDOUT, or -EINTR for a signal. Any number of
 * threads and processes may wait; a read-only mapping is enough. */
int64_t seg_await(const uint8_t *map, int64_t len, uint32_t seen, int64_t timeout_ns);
/* Wake all waiters, without a publication; returns their number. A read-only mapping is enough. */
int64_t seg_wake(const uint8_t *map, int64_t len);
/* Wake all waiters as seg_wake; in this process seg_await_ends returns, too. */
int64_t seg_rouse(const uint8_t *map, int64_t len);
/* Wake all waiters, and have them check for other news than the ends of their partitions; returns as seg_wake. */
int64_t seg_nudge(uint8_t *map, int64_t len);
/* A counter of seg_nudge calls. Read it before the state that nudges announce. During a publication it may differ for a
 * moment. */
int64_t seg_nudges(const uint8_t *map, int64_t len, const seg_shared_map *shared);
enum { SEG_TAILED_KEY, SEG_TAILED_START, SEG_TAILED_END, SEG_TAILED_STABLE, SEG_TAILED_LAYOUT_AND_EPOCH,
       SEG_TAILED };
/* The end of a partition at the last look: key, log start offset, high watermark, last stable offset, and layout (low
 * 32 bits) with leader epoch. The batch with `offset` will begin at `position` of the file `fd`; -1: not known. */
typedef struct seg_tailed {
    int64_t slot;
    int64_t words[SEG_TAILED];
    int64_t offset, position;
    int32_t fd;
    int32_t reserved;
} seg_tailed;
/* Fill f->words from slot f->slot: 1; 0 for a damaged slot; -EAGAIN as seg_snapshot. */
int64_t seg_read_tailed(const uint8_t *map, int64_t len, const seg_shared_map *shared, seg_tailed *f, int64_t spins);
/* The last record of a partition. SEG_LAST_SIZE: bytes of its batch, 0 without such a record. Key and value lie in
 * `bytes` from *_AT up to *_END, both -1 for a null. */
enum { SEG_LAST_ROOM = 4096 };
enum { SEG_LAST_SIZE, SEG_LAST_OFFSET, SEG_LAST_TIMESTAMP, SEG_LAST_TYPE, SEG_LAST_EPOCH, SEG_LAST_START,
       SEG_LAST_KEY, SEG_LAST_KEY_END, SEG_LAST_VALUE, SEG_LAST_VALUE_END, SEG_LAST_NUMBERS };
typedef struct seg_last_record {
    int64_t numbers[SEG_LAST_NUMBERS]; /* timestamp in ms; type 0 CreateTime, 1 LogAppendTime; log start offset */
    int32_t committed;       /* set by the caller: the partition may have no open transaction */
    int32_t check_crc;       /* set by the caller */
    char bytes[SEG_LAST_ROOM];
} seg_last_record;
/* A waiter for the ends of n partitions in a mapping. `spins`: tries during a publication that is under way. `turn`:
 * the partition that is checked first. It follows the partition of the last answer, so that none starves. */
typedef struct seg_tailer {
    const uint8_t *map;
    int64_t len;
    seg_tailed *tailed;
    int64_t n;
    int64_t spins;
    seg_last_record *last;
    int64_t turn;
    const seg_shared_map *shared;
} seg_tailer;
/* Wait until one of n slots differs from its last known value, and update that value. Returns the slot's number in
 * `tailed`; n after a seg_nudge, or a seg_rouse in this process; -EAGAIN as seg_snapshot, or for a damaged slot;
 * -ETIMEDOUT, -EINTR as seg_await. A timeout of 0 checks once without a system call. A publication of another partition
 * costs a check of the n slots, and does not end the wait. */
int64_t seg_await_ends(seg_tailer *f, uint32_t nudges, int64_t timeout_ns);
/* Copy the values of n slots consistently. -EAGAIN if a publication is still under way after `spins` tries, unless all
 * n slots are of shared logs, for which a dead host leaves no unfinished publication. A slot with a wrong check has the
 * key SEG_ENDS_DAMAGED. */
int64_t seg_snapshot(const uint8_t *map, int64_t len, const seg_shared_map *shared, const int64_t *slots,
                     int64_t *values, int64_t n, int64_t spins);

/* The last values that a reader has read of one slot. */
typedef struct seg_seen {
    const uint8_t *map;
    int64_t len, slot;
    int64_t generation;     /* of the slots: the int64 at map[24:32] */
    int64_t values[8];      /* as read by seg_snapshot */
    const seg_shared_map *shared;
} seg_seen;
/* Whether the slot still has these values: 1; 0 if it has others, or if a publication under way may be changing it. */
int32_t seg_unchanged(const seg_seen *seen);

/* --- await_record.c -------------------------------------------------------- */
/* Wait as seg_await_ends. Read the partition's last record into *f->last if it has the expected `offset` and is alone
 * in a plain, sound batch of at most SEG_LAST_ROOM bytes; the record after it is expected next. Else, or if the read
 * fails, SEG_LAST_SIZE is 0. */
int64_t seg_await_record(seg_tailer *f, uint32_t nudges, int64_t timeout_ns);

#endif
