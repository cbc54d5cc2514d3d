// The live view of a session on a fake platform.
import { followSession } from "../../src/whyloop/ui/session.js";
import { Platform } from "./platform.mjs";

export * from "./platform.mjs";

export class World extends Platform {
  seen = [];

  constructor(options = {}) {
    super();
    const onChange = (view) => this.seen.push(view.messages);
    this.session = followSession("/agents/sessions/a%201", onChange, { ...this.options, ...options });
  }

  get texts() {
    return this.session.view.messages.map((message) => message.content);
  }
}

/** The envelopes that are missing, as the runs of the view have them. */
export const gaps = (world) => world.session.view.runs.flatMap(({ gap }) => gap ?? []);

export async function connected(messages = [], after = null) {
  const world = new World();
  await world.history(messages, after);
  return world;
}
