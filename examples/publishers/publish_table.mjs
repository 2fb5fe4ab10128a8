// Publishes a table: the values of one metric of many nodes. All it knows of the product is in the AsyncAPI document.
//
//   npm install @nats-io/transport-node @nats-io/jetstream
//   node publish_table.mjs docs/reference/events/asyncapi.json nats://127.0.0.1:4222 load1 node-1=0.7 node-2=1.2

import { readFileSync } from "node:fs";
import { crc32 } from "node:zlib";
import { jetstream } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";

const [document, servers, metric, ...pairs] = process.argv.slice(2);
const { channels, components } = JSON.parse(readFileSync(document, "utf8"));
const mostRows = components.schemas.Table.properties.nodes.maxItems;
const values = pairs.map((pair) => pair.split("="));

// Twice as many parts until each has room for its nodes: the CRC-32 of its name gives the part of a node.
const divided = (count) => {
  const parts = Array.from({ length: count }, () => []);
  for (const row of values) parts[crc32(row[0]) % count].push(row);
  return parts;
};
let parts = divided(1);
while (parts.some((rows) => rows.length > mostRows)) parts = divided(2 * parts.length);

const { host, username: token } = new URL(servers); // this client reads no token in an address
const connection = await connect({ servers: host, ...(token && { token }), inboxPrefix: "_INBOX_node-publisher" });
for (const [number, rows] of parts.entries()) {
  const address = channels.tables.address.replace("{source}", "my-program").replace("{part}", `${parts.length}-${number}`);
  const table = { nodes: rows.map(([node]) => node), metrics: { [metric]: rows.map(([, value]) => value) } };
  const { seq } = await jetstream(connection).publish(address, JSON.stringify(table)); // stored once this returns
  console.log(`${address}: ${rows.length} nodes, stored as ${seq}`);
}
await connection.close();
