"""A model check of share partitions: breadth-first search over all that members, a shell that writes, dead
letters, a clock and a log can do to the real core.

`state` has what is known outside of the core too: what members were told, what is durable, and a history.
`world` has the steps, `checks` the properties of states, `settle` the one that nothing is lost, `search`
looks at every state. A step is one call of the core; its effects are steps of their own.
"""
