/* What the files of the module `_producer` share: producer.c says what they are for, and who may call them. */
#ifndef SEG_PRODUCER_H
#define SEG_PRODUCER_H

#include "objects.h"

#include <stddef.h>
#include <structmember.h>

/* `number` is the record's time, ms, while the holder is a queue, and its place in the batch afterwards. */
typedef struct {
    PyObject_HEAD
    PyObject *holder, *value, *key;
    long long number;
} Future;

/* See buffer_pool.py. */
typedef struct {
    PyObject_HEAD
    PyObject *waiters;
    long long block_size, unpooled, free, made, reused;
} Pool;

/* See accumulator.py. `gate` is the lock that the sender waits for. */
typedef struct {
    PyObject_HEAD
    PyObject *gate;
    char asleep;
} Gate;

/* A full batch, whose records lie before those of later ones. */
typedef struct {
    Py_ssize_t n;
    long long size, block;
    double created;
} Cut;

/* See batch.py. `in_cuts`: how many records lie in full batches. `closed`: bytes of the open batch, once it takes no
 * more. `held`: a thread that has the producer's lock
 * opens or seals a batch; an interrupt may leave it set until the next one. `lane`: see post.c; None: there is none. */
typedef struct {
    PyObject_HEAD
    PyObject *records, *batches, *latch, *callbacks, *lane;
    long long left, room, block, produced, closed;
    double created, cut_until;
    char rich, alone, held;
    Py_ssize_t n_cuts, room_cuts, in_cuts;
    Cut *cuts;
} Queue;

extern PyType_Spec seg_future_spec, seg_pool_spec, seg_gate_spec, seg_queue_spec;
extern PyTypeObject *seg_written_type; /* set once, as the module is made */
extern PyType_Spec seg_written_spec, seg_lane_spec, seg_post_spec;

/* Let a field refer to another object, or to none. */
static inline void put(PyObject **field, PyObject *value)
{
    Py_XINCREF(value);
    PyObject *before = *field;
    *field = value;
    Py_XDECREF(before);
}

/* The last step of a type's dealloc. */
static inline void free_object(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc give_back = (freefunc)PyType_GetSlot(type, Py_tp_free);
    give_back(object);
    Py_DECREF(type);
}

/* End the open batch, and open another one of `room` bytes in its place; whether that was done. */
int seg_cut(Queue *q, Pool *pool, long long room, double now);

/* Open a batch in a queue that is empty; whether that was done. */
int seg_open_batch(Queue *q, Pool *pool, long long room, double now);

/* Take the address of seg_tail_append, for the sender. */
PyObject *seg_bind_append(PyObject *module, PyObject *address);

/* Wake the sender; whoever finds it asleep, and nobody else, opens the gate. */
PyObject *seg_wake_sender(PyObject *gate, PyObject *nothing);

#endif
