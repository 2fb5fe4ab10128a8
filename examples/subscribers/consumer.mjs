// Prints the events of one channel as lines of JSON. All it knows of the product is in the AsyncAPI document.
//
//   npm install @nats-io/transport-node @nats-io/jetstream
//   node consumer.mjs docs/reference/events/asyncapi.json nats://127.0.0.1:4222 violation

import { readFileSync } from "node:fs";
import { jetstream, jetstreamManager } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";

const [document, servers, name] = process.argv.slice(2);
const api = JSON.parse(readFileSync(document, "utf8"));
const resolved = ({ $ref }) => $ref.slice(2).split("/").reduce((at, key) => at[key], api);
const channel = api.channels[name];
const subject = channel.address.replace(/\{\w+\}/g, "*");
const messages = Object.values(channel.messages).map(resolved);
const required = new Map(messages.map(({ name, payload }) => [name, resolved(payload).required ?? []]));

const { host, username: token } = new URL(servers); // this client reads no token in an address
const connection = await connect({ servers: host, ...(token && { token }), inboxPrefix: "_INBOX_node-consumer" });
const manager = await jetstreamManager(connection);
const stream = await manager.streams.find(subject);
// The server remembers by this name how far the program has come.
const durable_name = `node-${name}`;
await manager.consumers.add(stream, { durable_name, filter_subject: subject, ack_policy: "explicit", max_ack_pending: 1 });
const consumer = await jetstream(connection).consumers.get(stream, durable_name);

process.once("SIGTERM", () => connection.close());
for await (const message of await consumer.consume()) {
  const type = message.headers.get("ce-type");
  const fields = required.get(type);
  if (fields === undefined) {
    console.error(`skipped: ${type} is a type or a version that ${document} does not have`);
  } else {
    const data = message.json();
    const missing = fields.filter((field) => !(field in data));
    console.log(JSON.stringify({ id: message.headers.get("ce-id"), type, data, missing }));
  }
  message.ack(); // only now: if the program is killed before, the event comes again
}
