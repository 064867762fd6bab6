/* A log that several processes append to: the shared state, and each process's own (share.c, share_lock.c, members.c,
 * share_sync.c).
 *
 * The shared state lies in one mapped file, `.segstore/shared`: a header, the members, and a part for each log, at the
 * number of its slot in `.segstore/ends`. It has fixed widths, no pointers, and no bit that a dead process could leave
 * wrong. Times are ms of CLOCK_MONOTONIC, except those for display. */
#ifndef SEG_CONTRACT_SHARED_H
#define SEG_CONTRACT_SHARED_H

#include <stdint.h>

#include "active.h"

enum { SEG_SHARED_FORMAT = 1, SEG_SHARED_LOGS = 32768, SEG_SHARED_LOG = 8192, SEG_SHARED_MEMBERS_AT = 4096 };
enum { SEG_MEMBERS = 64, SEG_SEATS = 16, SEG_SEALED = 8, SEG_MAKING_BYTE = 1000 };

/* The owner of a log's lock within a process: the tail of a guest, the tail of a host, or a host's Python code. Only
 * the next host takes the lock of the last one. A lock's word has a bit for "somebody waits" (31), slot << 2 | owner,
 * plus 1, and in the high half the incarnation of the slot; 0: free. The low half is a futex. */
enum { SEG_OF_GUEST, SEG_OF_APPENDS, SEG_OF_HOST };

/* States of a request, stored with its number << 2; and the kinds of requests. */
enum { SEG_EMPTY, SEG_ASKED, SEG_TAKEN, SEG_DONE };
enum { SEG_ASKS_READY = 1, SEG_ASKS_SYNC, SEG_ASKS_AWAY };

/* The answer to an append that may not sleep while another thread has the log's lock; nothing was done. */
enum { SEG_BUSY = -65542 };

/* The end of a shared log: the fields that change together. Once it is current, it never changes. */
typedef struct seg_shared_end {
    seg_end end;
    int64_t generation;      /* counts changes of the files, the room of indexes, settings and epoch, which members
                                bind */
    int64_t is_sealed;       /* 1: no appends; the host must make the next segment */
    int64_t start_offset;
    int64_t stable_offset;   /* the last stable offset; -1: next_offset */
    int64_t layout;
    int64_t leader_epoch;
    int64_t spare[6];
} seg_shared_end;

/* A segment that was sealed while the lock's owner was alive, and may still write to it: its bytes from `position` on
 * belong to no batch. */
typedef struct seg_sealed {
    uint64_t owner;          /* 0: none */
    int64_t generation;      /* INT64_MAX: the owner may still move the end */
    int64_t base_offset;
    int64_t position;
    int64_t offset_entries;
    int64_t time_entries;
    int64_t is_replaced;     /* 1: it was empty, and another file has its name */
    int64_t spare;
} seg_sealed;

typedef struct seg_shared_log {
    uint64_t lock;
    int64_t lock_spare[7];
    uint64_t current;        /* turn << 16 | seat << 8 | which; 0: never opened while the store was shared */
    int64_t current_spare[7];
    int64_t key;             /* of the partition; 0: none */
    uint32_t open;           /* 1: members may append by themselves */
    uint32_t torn;           /* odd: bytes may lie beyond the end; counts such times */
    int64_t aways;           /* times that the lock was taken from a living owner */
    int64_t most_position;   /* settings for appends, as in seg_active */
    int64_t young_ms;
    int64_t interval;
    int64_t by_log_only;     /* the generation in which a sync of the active segment's log is enough; below 0: none */
    int64_t settings;        /* counts changes of the topic's settings */
    uint64_t pending;        /* the next `current`, if the header's `together` is `pending_of` */
    int64_t pending_of;
    int64_t pending_key;     /* the key of the log in that case */
    int64_t spare[5];
    seg_sealed sealed[8];
    uint64_t sync_lock;      /* as `lock`, for the process that syncs the log */
    uint32_t sync_word;      /* a futex: changes with the end of each sync */
    uint32_t sync_waiting;
    uint32_t sync_served;
    int32_t failed;          /* errno of a failed sync: the log is fenced for all members */
    int64_t synced;          /* all below is durable */
    int64_t sync_from;       /* -1, or the log's end when the current sync began */
    int64_t patience;        /* ns, as in seg_commit */
    int64_t synced_position; /* the position of synced_offset in its segment, if it still equals `synced` */
    int64_t synced_offset;
    uint64_t seats[16];      /* the owners of seats: a word as the lock's, without SEG_WAITED; 0: free */
    seg_shared_end ends[32]; /* two for each seat */
} seg_shared_log;

typedef struct seg_shared_member {
    uint32_t incarnation;    /* counts the processes that had the slot */
    int32_t pid;             /* for display only */
    char version[16];
    int64_t since_ms;        /* for display: ms since the epoch */
    int32_t may_host;
    uint32_t number;         /* a random number, which the host repeats through the store's socket */
    uint32_t request;        /* a futex: number << 2 | state */
    int32_t asks;
    int64_t log;             /* the log's number */
    int64_t key;             /* of its partition */
    int64_t generation;      /* the generation that the member knows */
    uint64_t word;           /* of SEG_ASKS_AWAY: the lock's word */
    int64_t size;            /* SEG_ASKS_READY: bytes, batches and offsets of the append, time of its first batch; */
    int64_t batches;         /* SEG_ASKS_SYNC: `offsets` is the offset below which all must become durable */
    int64_t offsets;
    int64_t timestamp;
    int32_t answer;          /* 0: try again; else the fault (shared/verdicts.py) */
    int32_t error;           /* its errno, or 0 */
    char text[136];
} seg_shared_member;

typedef struct seg_shared_header {
    char magic[8];           /* written last; up to `version` the header is the same in all formats */
    uint32_t format;
    uint32_t members;        /* number of slots */
    int64_t boot[2];         /* the start of the machine, and its complement */
    char version[16];        /* the segstore that made the file */
    int64_t which[3];        /* device, inode and birth of the file: a copy has others */
    uint32_t live;           /* 1: shared; 2: shared, and its last member closes it: no joins; 0: left from an
                                earlier time */
    uint32_t appends;        /* publications without a sequence */
    uint32_t bell;           /* a futex: rung when the host has work */
    uint32_t hosts;          /* a futex: counts the hosts */
    int32_t host_slot;       /* -1: none yet */
    uint32_t host_incarnation;
    int64_t host_since_ms;   /* for people */
    int64_t together;        /* logs with this `pending_of` use `pending` as `current`; 0: none */
    int64_t together_turn;
    int64_t stopped_ms;      /* shared.stopped.ms */
    int64_t answer_ms;       /* shared.answer.ms */
    int64_t spare[4];
} seg_shared_header;

/* This process as a member of a store. When the file has grown, it is mapped again at another address, and the older
 * mapping stays. */
typedef struct seg_member {
    uint8_t *map;
    int64_t len;
    int32_t members_fd;      /* of `.segstore/members`; -1: closed */
    int32_t slot;            /* -1: none yet */
    uint64_t members_device; /* identify that file: if other code has closed the descriptor, it may be another file's */
    uint64_t members_inode;
    uint32_t incarnation;
    int32_t is_host;
    int32_t look_ms;         /* ms that a lock is waited for before its owner is checked for death */
    int32_t spins;
    const uint8_t *here;     /* 1 in this process, 0 in its children */
} seg_member;

/* The share of one tail in a log's shared state. The tail's lock guards it. */
typedef struct seg_share {
    seg_member *member;
    seg_shared_log *log;
    int64_t key;
    int64_t generation;      /* the generation that the tail has bound; -1: none */
    int64_t aways;           /* `aways` when this tail last cut its sealed segments */
    uint64_t current;        /* the `current` of the record that the tail has loaded or made */
    int64_t start_offset;    /* marks of that record */
    int64_t layout;
    uint64_t waited_for;     /* the word of a lock after a wait in vain, without the waiters' bit; 0: none */
    uint64_t waits_for;      /* the word that is waited for since waits_since; 0: none */
    int64_t waits_since;     /* ms of CLOCK_MONOTONIC */
    int32_t comes_again;     /* 1: an append was interrupted for signals' handlers, and must be repeated */
    int32_t spare;
    int32_t who;
    int32_t is_held;         /* 1: the log's lock is held by a thread that has the tail's */
    int32_t is_sealed;       /* host: 1: the lock was taken away, and the next segment must be made */
    int32_t seat;            /* this tail's last seat */
    int64_t settings;        /* host: counts changes of settings */
    int64_t opened[5];       /* host: base offset, rooms, settings and epoch at its last opening */
} seg_share;

#endif
