// The scenario of tests/support/clients/scenario.py with kafkajs. Arguments: the server's address.
'use strict'

const { CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = require('kafkajs')

const COUNT = 200
const kafka = new Kafka({ brokers: [process.argv[2]], logLevel: logLevel.ERROR })
setTimeout(() => fail(new Error('the scenario did not end in two minutes')), 120000).unref()

function fail(error) {
  console.error(error)
  process.exit(1)
}

async function topics(admin) {
  const created = [
    { topic: 'events', numPartitions: 2, configEntries: [{ name: 'retention.ms', value: '3600000' }] },
    { topic: 'results', numPartitions: 2 },
    { topic: 'gone', numPartitions: 1 },
  ]
  await admin.createTopics({ topics: created, waitForLeaders: true })
  const resources = [{ type: ConfigResourceTypes.TOPIC, name: 'events', configNames: ['retention.ms'] }]
  const described = await admin.describeConfigs({ resources, includeSynonyms: false })
  await admin.createPartitions({ topicPartitions: [{ topic: 'gone', count: 3 }] })
  const gone = await admin.fetchTopicMetadata({ topics: ['gone'] })
  if (gone.topics[0].partitions.length !== 3) throw new Error('gone has not three partitions')
  await admin.deleteTopics({ topics: ['gone'] })
  const left = await admin.listTopics()
  return { topics: left, retention: described.resources[0].configEntries[0].configValue }
}

async function produce() {
  const producer = kafka.producer({ idempotent: true })
  await producer.connect()
  const messages = Array.from({ length: COUNT }, (_, n) => ({
    key: `k${n}`,
    value: `value ${n}`,
    partition: n % 2,
    headers: { from: 'kafkajs' },
  }))
  await producer.send({ topic: 'events', messages, compression: CompressionTypes.GZIP })
  await producer.disconnect()
}

// Resolves as soon as `look` gives something.
async function until(look) {
  for (;;) {
    const found = look()
    if (found) return found
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}

// A member of the group: the partitions that it has, and what the group read.
async function join(read) {
  const consumer = kafka.consumer({ groupId: 'readers', heartbeatInterval: 200, sessionTimeout: 10000 })
  const member = { consumer, has: [] }
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    member.has = (payload.memberAssignment.events || []).slice().sort()
  })
  await consumer.connect()
  await consumer.subscribe({ topics: ['events'], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => {
      read.set(`${partition} ${message.offset}`, message.value.toString())
    },
  })
  return member
}

async function group() {
  const read = new Map()
  const stays = await join(read)
  const goes = await join(read)
  const together = await until(() => {
    const both = [stays.has, goes.has]
    return both.every((each) => each.length === 1) && both
  })
  await goes.consumer.disconnect()
  await until(() => stays.has.length === 2 && read.size === COUNT)
  const ends = [0, 1].map((partition) => ({ topic: 'events', partition, offset: String(COUNT / 2) }))
  await stays.consumer.commitOffsets(ends)
  const alone = stays.has
  await stays.consumer.disconnect()
  return { together, alone, read: [...read.values()] }
}

// Returns the values of a topic, up to COUNT of them.
async function consumed(topic, readUncommitted) {
  const consumer = kafka.consumer({ groupId: `reader of ${topic}`, readUncommitted })
  const found = []
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => {
      found.push({ partition, value: message.value.toString() })
    },
  })
  await until(() => found.length >= COUNT)
  await consumer.disconnect()
  return found
}

async function transactions() {
  const producer = kafka.producer({ idempotent: true, transactionalId: 'copier', maxInFlightRequests: 1 })
  await producer.connect()
  const first = await producer.transaction()
  const aborted = [0, 1, 2].map((n) => ({ value: `aborted ${n}`, partition: 0 }))
  await first.send({ topic: 'results', messages: aborted })
  await first.abort()
  const read = await consumed('events', true)
  const second = await producer.transaction()
  const messages = read.map(({ partition, value }) => ({ partition, value: value.toUpperCase() }))
  await second.send({ topic: 'results', messages })
  const partitions = [0, 1].map((partition) => ({ partition, offset: String(COUNT / 2) }))
  await second.sendOffsets({ consumerGroupId: 'copiers', topics: [{ topic: 'events', partitions }] })
  await second.commit()
  await producer.disconnect()
}

async function main() {
  const admin = kafka.admin()
  await admin.connect()
  const told = await topics(admin)
  await produce()
  Object.assign(told, await group())
  await transactions()
  told.committed = (await consumed('results', false)).map(({ value }) => value)
  const { groups } = await admin.listGroups()
  told.groups = groups.map(({ groupId }) => groupId)
  const [offsets] = await admin.fetchOffsets({ groupId: 'copiers', topics: ['events'] })
  told.offsets = [0, 1].map((n) => Number(offsets.partitions.find(({ partition }) => partition === n).offset))
  await admin.disconnect()
  console.log(JSON.stringify(told))
  process.exit(0)
}

main().catch(fail)
