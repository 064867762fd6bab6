/* A log that several processes append to: what they share, and what each has for itself (share.c, share_lock.c, members.c,
 * share_sync.c).
 *
 * All that is shared lies in one mapped file, `.segstore/shared`: a header, the members, and a part for each log, at the
 * number of its slot in `.segstore/ends`. It has fixed widths, no pointers, and no bit that a dead process could leave
 * wrong. Times are ms of CLOCK_MONOTONIC, unless they are told to people. */
#ifndef SEG_CONTRACT_SHARED_H
#define SEG_CONTRACT_SHARED_H

#include <stdint.h>

#include "active.h"

enum { SEG_SHARED_FORMAT = 1, SEG_SHARED_LOGS = 32768, SEG_SHARED_LOG = 8192, SEG_SHARED_MEMBERS_AT = 4096 };
enum { SEG_MEMBERS = 64, SEG_SEATS = 16, SEG_SEALED = 8, SEG_MAKING_BYTE = 1000 };

/* Who of a process takes a log's lock: the tail of a guest, that of a host, or what a host's Python does. The lock of the
 * last one is taken by the next host only. A lock's word has a bit for "somebody waits" (31), slot << 2 | who, plus 1, and
 * in the high half the incarnation of the slot; 0: free. The low half is a futex. */
enum { SEG_OF_GUEST, SEG_OF_APPENDS, SEG_OF_HOST };

/* States of a request, beside which lies its number << 2; and what it asks for. */
enum { SEG_EMPTY, SEG_ASKED, SEG_TAKEN, SEG_DONE };
enum { SEG_ASKS_READY = 1, SEG_ASKS_SYNC, SEG_ASKS_AWAY };

/* What an append gives that may not sleep, if the log's lock is another's; nothing was done. */
enum { SEG_BUSY = -65542 };

/* The end of a shared log: all that changes together. Once it is current, nobody changes it. */
typedef struct seg_shared_end {
    seg_end end;
    int64_t generation;      /* counts changes of what a member has bound: files, room of indexes, settings, epoch */
    int64_t is_sealed;       /* 1: nobody appends here; the host is to make the next segment */
    int64_t start_offset;
    int64_t stable_offset;   /* the last stable offset; -1: next_offset */
    int64_t layout;
    int64_t leader_epoch;
    int64_t spare[6];
} seg_shared_end;

/* A segment that was sealed while the owner of the lock was alive, and may write to it still: its bytes from `position`
 * on are nobody's. */
typedef struct seg_sealed {
    uint64_t owner;          /* 0: none */
    int64_t generation;      /* INT64_MAX: the owner may move the end still */
    int64_t base_offset;
    int64_t position;
    int64_t offset_entries;
    int64_t time_entries;
    int64_t is_replaced;     /* 1: it was empty, and its name is another file's */
    int64_t spare;
} seg_sealed;

typedef struct seg_shared_log {
    uint64_t lock;
    int64_t lock_spare[7];
    uint64_t current;        /* turn << 16 | seat << 8 | which; 0: the log was never opened while it was shared */
    int64_t current_spare[7];
    int64_t key;             /* of the partition; 0: none */
    uint32_t open;           /* 1: members may append by themselves */
    uint32_t torn;           /* odd: bytes may lie behind the end; counts how often that was so */
    int64_t aways;           /* how often the lock was taken from a living owner */
    int64_t most_position;   /* settings that appends keep: see seg_active */
    int64_t young_ms;
    int64_t interval;
    int64_t by_log_only;     /* the generation in which a sync of the active segment's log makes all durable; below 0: none */
    int64_t settings;        /* counts changes of the topic's settings */
    uint64_t pending;        /* the next `current`, if the header's `together` is `pending_of` */
    int64_t pending_of;
    int64_t pending_key;     /* the key that the log has then */
    int64_t spare[5];
    seg_sealed sealed[8];
    uint64_t sync_lock;      /* as `lock`: who syncs the log */
    uint32_t sync_word;      /* a futex: changes with the end of each sync */
    uint32_t sync_waiting;
    uint32_t sync_served;
    int32_t failed;          /* errno of a sync that failed: the log is fenced for all members */
    int64_t synced;          /* all below is durable */
    int64_t sync_from;       /* -1, or up to where the sync that is under way began */
    int64_t patience;        /* ns, as in seg_commit */
    int64_t synced_position; /* where synced_offset lies in its segment, if that is `synced` still */
    int64_t synced_offset;
    uint64_t seats[16];      /* whose they are: a word as the lock's, without SEG_WAITED; 0: free */
    seg_shared_end ends[32]; /* two for each seat */
} seg_shared_log;

typedef struct seg_shared_member {
    uint32_t incarnation;    /* of the slot: counts the processes that had it */
    int32_t pid;             /* for people; nothing is decided by it */
    char version[16];
    int64_t since_ms;        /* for people: ms since the epoch */
    int32_t may_host;
    uint32_t number;         /* a random one, which the host says back through the store's socket */
    uint32_t request;        /* a futex: number << 2 | state */
    int32_t asks;
    int64_t log;             /* the log's number */
    int64_t key;             /* of its partition */
    int64_t generation;      /* what the member has seen */
    uint64_t word;           /* of SEG_ASKS_AWAY: the lock's word */
    int64_t size;            /* of SEG_ASKS_READY: bytes, batches and offsets of the append, and its first batch's time; */
    int64_t batches;         /* of SEG_ASKS_SYNC `offsets` is the offset below which all is to be durable */
    int64_t offsets;
    int64_t timestamp;
    int32_t answer;          /* 0: look again; else what went wrong (shared/verdicts.py) */
    int32_t error;           /* its errno, or 0 */
    char text[136];
} seg_shared_member;

typedef struct seg_shared_header {
    char magic[8];           /* written last; up to `version` the header is the same in all formats */
    uint32_t format;
    uint32_t members;        /* how many slots there are */
    int64_t boot[2];         /* the start of the machine, and its complement */
    char version[16];        /* of the segstore that made the file */
    int64_t which[3];        /* device, inode and birth of the file: no copy of it has the same */
    uint32_t live;           /* 1: the store is shared; 2: it is, and its last member closes it: nobody may join; 0: what is here is old */
    uint32_t appends;        /* publications that had no sequence, wrapping */
    uint32_t bell;           /* a futex: the host has something to do */
    uint32_t hosts;          /* a futex: counts the hosts */
    int32_t host_slot;       /* -1: none yet */
    uint32_t host_incarnation;
    int64_t host_since_ms;   /* for people */
    int64_t together;        /* logs whose `pending_of` is this number go on with `pending`; 0: none */
    int64_t together_turn;
    int64_t stopped_ms;      /* shared.stopped.ms */
    int64_t answer_ms;       /* shared.answer.ms */
    int64_t spare[4];
} seg_shared_header;

/* This process as a member of a store. The mapping may be made anew, at another address, when the file has grown: the
 * older one stays mapped. */
typedef struct seg_member {
    uint8_t *map;
    int64_t len;
    int32_t members_fd;      /* of `.segstore/members`; -1: closed */
    int32_t slot;            /* -1: none yet */
    uint64_t members_device; /* of that file: after a foreign close its descriptor may be another file's */
    uint64_t members_inode;
    uint32_t incarnation;
    int32_t is_host;
    int32_t look_ms;         /* how long a lock is waited for before a look at whether its owner is dead */
    int32_t spins;
    const uint8_t *here;     /* 1 in this process, 0 in its children */
} seg_member;

/* A log's share in this process: of one tail. The tail's lock guards it. */
typedef struct seg_share {
    seg_member *member;
    seg_shared_log *log;
    int64_t key;
    int64_t generation;      /* of what the tail has bound; -1: nothing */
    int64_t aways;           /* as they were when this tail last saw to what it had left */
    uint64_t current;        /* whose record the tail's own end was loaded from, or that it made */
    int64_t start_offset;    /* marks of that record */
    int64_t layout;
    uint64_t waited_for;     /* the lock's word that was waited for in vain, without the bit; 0: none */
    uint64_t waits_for;      /* the one that is waited for since then; 0: none */
    int64_t waits_since;     /* ms of CLOCK_MONOTONIC */
    int32_t comes_again;     /* 1: an append was given up, so that signals' handlers run, and is to be made again */
    int32_t spare;
    int32_t who;
    int32_t is_held;         /* 1: the log's lock is held by a thread that has the tail's */
    int32_t is_sealed;       /* of a host: 1: the lock was taken away, and the next segment is to be made */
    int32_t seat;            /* that this tail had last */
    int64_t settings;        /* of a host: counts changes of settings */
    int64_t opened[5];       /* of a host: base offset, rooms, settings and epoch that it opened last */
} seg_share;

#endif
