/** The shared worker: one stream for all tabs of a browser. */

import { eventStream, Stream, type Wanted } from "./stream";

type Told = { wanted: Wanted; base: string; token: string } | "retry" | "leave";

const streams = new Map<string, Stream>();

(self as unknown as { onconnect: (event: MessageEvent) => void }).onconnect = ({ ports: [port] }) => {
  if (!port) return;
  let stream: Stream | undefined;
  port.onmessage = ({ data }: MessageEvent<Told>) => {
    if (data === "retry") stream?.retry();
    else if (data === "leave") stream?.leave(port);
    else {
      // Tabs with another token see other sessions, so they have a stream of their own.
      const { base, token, wanted } = data;
      const key = JSON.stringify([base, token]);
      const headers = (): Record<string, string> => (token ? { authorization: `Bearer ${token}` } : {});
      const mine = streams.get(key) ?? new Stream(eventStream(base, headers));
      streams.set(key, mine);
      if (stream !== mine) stream?.leave(port);
      stream = mine;
      mine.listen(port, wanted, (news) => port.postMessage(news));
    }
  };
};
