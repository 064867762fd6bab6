/* The type of the producer's futures: objects that the garbage collector does not know.
 *
 * An application may keep millions of futures, and the collector visits each instance of a class that is written in
 * Python. Without the collector, a future must be in no reference cycle once its outcome is known, or it is never
 * freed: client/producer/future.py has the reason why none is, and sets its methods on this type.
 *
 * Thread contract: that of any Python object; the interpreter's lock is held.
 */
#include "producer.h"

static PyMemberDef future_members[] = {
    {"_holder", T_OBJECT_EX, offsetof(Future, holder), 0, NULL},
    {"_value", T_OBJECT, offsetof(Future, value), 0, NULL},
    {"_key", T_OBJECT, offsetof(Future, key), 0, NULL},
    {"_time", T_LONGLONG, offsetof(Future, number), 0, NULL},
    {"_at", T_LONGLONG, offsetof(Future, number), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static void free_future(PyObject *object)
{
    Future *self = (Future *)object;
    Py_XDECREF(self->holder);
    Py_XDECREF(self->value);
    Py_XDECREF(self->key);
    free_object(object);
}

static PyType_Slot future_slots[] = {
    {Py_tp_members, future_members},
    {Py_tp_dealloc, (void *)free_future},
    {0, NULL},
};

/* No Py_TPFLAGS_HAVE_GC; and no subclass, which would set that flag. */
PyType_Spec seg_future_spec = {
    .name = "segstore.client.producer.future.FutureRecordMetadata",
    .basicsize = sizeof(Future),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = future_slots,
};
