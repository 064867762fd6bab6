/* Sends from a mapping by io_uring's send_zc, without liburing (io_uring_enter(2), linux/io_uring.h).
 *
 * Thread contract: no state of its own; a ring lies with its caller, one thread at a time, and has one request
 * under way at most. A request ends with its result and, if the kernel has announced a notice, with the notice that its
 * pages are needed no more. A wait returns -EINTR after a signal and also after WAIT_NS, because a signal may have come
 * just before the wait; the same call then goes on with the request that is under way.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#ifdef __linux__
#include <linux/io_uring.h>
#include <linux/time_types.h>
#include <sys/syscall.h>
#endif

#include "exhibits.h"

#ifdef IORING_SEND_ZC_REPORT_USAGE

enum { ENTRIES = 4, TAG = 1, PROBED = 256, WAIT_NS = 100000000, CANCEL_NS = 1000000000 };
enum { RESULT = 1, NOTICE = 2 }; /* bits of awaited */

static uint32_t load(const seg_ring *r, uint32_t at)
{
    return __atomic_load_n((uint32_t *)(void *)(r->rings + at), __ATOMIC_ACQUIRE);
}

static void store(const seg_ring *r, uint32_t at, uint32_t value)
{
    __atomic_store_n((uint32_t *)(void *)(r->rings + at), value, __ATOMIC_RELEASE);
}

int64_t seg_ring_open(seg_ring *r)
{
    struct io_uring_params p;
    memset(&p, 0, sizeof p);
    memset(r, 0, sizeof *r);
    int fd = (int)syscall(SYS_io_uring_setup, ENTRIES, &p);
    if (fd < 0)
        return -errno;
    r->open = 1;
    r->fd = fd;
    if (!(p.features & IORING_FEAT_SINGLE_MMAP) || !(p.features & IORING_FEAT_EXT_ARG)) {
        seg_ring_close(r);
        return -ENOSYS;
    }
    uint64_t sq = p.sq_off.array + p.sq_entries * sizeof(uint32_t);
    uint64_t cq = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    int64_t rings_len = (int64_t)(sq > cq ? sq : cq), sqes_len = (int64_t)(p.sq_entries * sizeof(struct io_uring_sqe));
    void *rings = mmap(NULL, (size_t)rings_len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, IORING_OFF_SQ_RING);
    void *sqes = mmap(NULL, (size_t)sqes_len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, IORING_OFF_SQES);
    int why = errno;
    if (rings != MAP_FAILED) {
        r->rings = rings;
        r->rings_len = rings_len;
    }
    if (sqes != MAP_FAILED) {
        r->sqes = sqes;
        r->sqes_len = sqes_len;
    }
    if (!r->rings || !r->sqes) {
        seg_ring_close(r);
        return -why;
    }
    r->sq_tail = p.sq_off.tail;
    r->sq_mask = p.sq_off.ring_mask;
    r->sq_array = p.sq_off.array;
    r->cq_head = p.cq_off.head;
    r->cq_tail = p.cq_off.tail;
    r->cq_mask = p.cq_off.ring_mask;
    r->cqes = p.cq_off.cqes;
    return 0;
}

/* A request that still waits for the sink must not send the bytes that are mapped at its window's address later. */
static void cancel(seg_ring *r)
{
    struct io_uring_sync_cancel_reg which;
    memset(&which, 0, sizeof which);
    which.addr = TAG;
    which.fd = -1;
    which.timeout.tv_nsec = CANCEL_NS % 1000000000;
    which.timeout.tv_sec = CANCEL_NS / 1000000000;
    r->registers++;
    syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_SYNC_CANCEL, &which, 1);
}

int64_t seg_ring_close(seg_ring *r)
{
    if (!r->open)
        return 0;
    if (r->awaited & RESULT)
        cancel(r);
    if (r->rings)
        munmap(r->rings, (size_t)r->rings_len);
    if (r->sqes)
        munmap(r->sqes, (size_t)r->sqes_len);
    close(r->fd);
    r->rings = r->sqes = NULL;
    r->open = r->awaited = 0;
    return 0;
}

int64_t seg_ring_probe(void)
{
    seg_ring ring;
    union {
        struct io_uring_probe head;
        uint8_t room[sizeof(struct io_uring_probe) + PROBED * sizeof(struct io_uring_probe_op)];
    } probe;
    memset(&probe, 0, sizeof probe);
    int64_t result = seg_ring_open(&ring);
    if (result < 0)
        return result;
    if (syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_PROBE, &probe, PROBED) < 0)
        result = -errno;
    else if (probe.head.ops_len <= IORING_OP_SEND_ZC || !(probe.head.ops[IORING_OP_SEND_ZC].flags & IO_URING_OP_SUPPORTED))
        result = -EOPNOTSUPP;
    seg_ring_close(&ring);
    return result;
}

static void submit(seg_ring *r, int out, const uint8_t *from, int64_t count)
{
    uint32_t tail = load(r, r->sq_tail), slot = tail & load(r, r->sq_mask);
    struct io_uring_sqe *sqe = (struct io_uring_sqe *)(void *)r->sqes + slot;
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = IORING_OP_SEND_ZC;
    sqe->ioprio = IORING_SEND_ZC_REPORT_USAGE;
    sqe->fd = out;
    sqe->addr = (uint64_t)(uintptr_t)from;
    sqe->len = count > 0x7ffff000 ? 0x7ffff000 : (uint32_t)count;
    sqe->msg_flags = MSG_WAITALL | MSG_NOSIGNAL;
    sqe->user_data = TAG;
    store(r, r->sq_array + slot * (uint32_t)sizeof(uint32_t), slot);
    store(r, r->sq_tail, tail + 1);
    r->awaited = RESULT;
    r->unsubmitted = 1;
}

static void reap(seg_ring *r)
{
    uint32_t head = load(r, r->cq_head), tail = load(r, r->cq_tail), mask = load(r, r->cq_mask);
    for (; head != tail; head++) {
        const struct io_uring_cqe *cqe = (const struct io_uring_cqe *)(const void *)(r->rings + r->cqes) + (head & mask);
        if (cqe->flags & IORING_CQE_F_NOTIF) {
            r->awaited &= ~NOTICE;
            r->notices++;
            r->copied += ((uint32_t)cqe->res & IORING_NOTIF_USAGE_ZC_COPIED) != 0;
        } else {
            r->result = cqe->res;
            r->awaited = cqe->flags & IORING_CQE_F_MORE ? NOTICE : 0;
        }
    }
    store(r, r->cq_head, head);
}

int64_t seg_ring_send(seg_ring *r, int out, const seg_window *w, int64_t position, int64_t count)
{
    int64_t at = position - w->position;
    struct __kernel_timespec wait = {.tv_nsec = WAIT_NS};
    struct io_uring_getevents_arg argument = {.ts = (uint64_t)(uintptr_t)&wait};
    if (!r->open || !w->memory || at < 0 || count <= 0 || count > w->mapped - at)
        return -EINVAL;
    if (!r->awaited)
        submit(r, out, w->memory + at, count);
    while (r->awaited) {
        r->enters++;
        long taken = syscall(SYS_io_uring_enter, r->fd, r->unsubmitted, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG,
                             &argument, sizeof argument);
        int why = errno;
        if (taken > 0)
            r->unsubmitted -= (int32_t)taken;
        reap(r);
        if (taken < 0 && r->awaited)
            return why == ETIME ? -EINTR : -why;
    }
    return r->result;
}

#else /* not Linux, or the kernel's headers at the build had no send_zc */

int64_t seg_ring_open(seg_ring *r)
{
    memset(r, 0, sizeof *r);
    return -ENOSYS;
}

int64_t seg_ring_close(seg_ring *r)
{
    return 0;
}

int64_t seg_ring_probe(void)
{
    return -ENOSYS;
}

int64_t seg_ring_send(seg_ring *r, int out, const seg_window *w, int64_t position, int64_t count)
{
    return -ENOSYS;
}

#endif
