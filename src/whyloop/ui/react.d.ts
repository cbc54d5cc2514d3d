/** A React hook that follows a session on a whyloop server. React 18 or newer. */

import type { UiMessage, View } from "./index.js";
import type { FollowOptions } from "./session.js";

export interface Session {
  /** The latest view. Nothing is in it until the history has arrived. */
  view: View;
  /** The last error, until the next view. The session is requested again without your help. */
  error: Error | null;
  /**
   * Show at once a message that the user has sent, or an error of your own. Without a role it is the user's.
   * Return a function that removes it again, for a message that could not be sent. It never changes, so it can
   * be a dependency of an effect.
   */
  add(message: Partial<UiMessage>): () => void;
  /** Request the history again. It never changes either. */
  refresh(): Promise<void>;
}

/**
 * Follow the session at this address while the component is mounted; none while the address is null.
 *
 * Each call has a connection of its own. To show a session in several components, call the hook in one that
 * contains them, and pass them the view. Other options count from the next address on.
 */
export function useSession(url: string | null, options?: FollowOptions): Session;
