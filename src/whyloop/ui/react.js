/** A React hook that follows a session on a whyloop server. */

import { useCallback, useEffect, useRef, useState } from "react";

import { viewOf } from "./history.js";
import { followSession } from "./session.js";

const NOTHING = { url: null, view: viewOf(), error: null };

/**
 * Follow a session while the component is mounted, and render it again with each new view.
 * @type {typeof import("./react.js").useSession}
 */
export function useSession(url, options = {}) {
  const [known, setKnown] = useState(NOTHING);
  const latestOptions = useRef(options);
  const session = useRef(null);

  useEffect(() => {
    latestOptions.current = options;
  });

  useEffect(() => {
    if (url === null) return undefined;
    const onChange = (view) => setKnown({ url, view, error: null });
    const onError = (error) => {
      setKnown((before) => ({ url, view: before.url === url ? before.view : NOTHING.view, error }));
      latestOptions.current.onError?.(error);
    };
    const followed = followSession(url, onChange, { ...latestOptions.current, onError });
    session.current = followed;
    return () => {
      session.current = null;
      followed.close();
    };
  }, [url]);

  const add = useCallback((message) => session.current?.add(message) ?? (() => {}), []);
  const refresh = useCallback(async () => session.current?.refresh(), []);
  const { view, error } = known.url === url ? known : NOTHING;
  return { view, error, add, refresh };
}
