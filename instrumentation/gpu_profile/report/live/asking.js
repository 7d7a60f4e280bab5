"use strict";
// Asks the server for the rows after the page's cursor, and writes whether it answers.

const TIMEOUT_MS = 10_000, LONGEST_PAUSE_MS = 30_000;
const LAMPS = { ok: "●", late: "▲", lost: "✕", paused: "‖", wait: "○" };

const clock = ms => new Date(ms).toLocaleTimeString([], { hourCycle: "h23" });
// Leaves a text that is the same alone: selections, focus and the reader of a screen are not disturbed.
const write = (element, text) => { if (element.textContent !== text) element.textContent = text; };

// A page that asks again and again. Subclasses `take` answers.
class AskingPage extends Page {
  constructor(setting) {
    super({ regions: [], groups: [], length: 1, step_s: 0.001 });
    Object.assign(this, { setting, position: "", failures: 0, paused: false, notice: "", noticed: 0 });
    document.getElementById("pause").addEventListener("click", () => this.pause());
    document.addEventListener("visibilitychange", () => this.wake());
  }

  pause() {
    this.paused = !this.paused;
    const button = document.getElementById("pause");
    button.setAttribute("aria-pressed", String(this.paused));
    write(button, this.paused ? "go on" : "pause");
    this.wake();
  }

  // A page that nobody sees asks for nothing, and draws nothing.
  wake() {
    clearTimeout(this.timer); clearInterval(this.ticking);
    this.timer = this.ticking = 0;
    if (document.hidden) return;
    this.ticking = setInterval(() => this.tell(), 1000);
    this.tell();
    if (!this.paused && !this.asking) this.poll();
  }

  async poll() {
    this.asking = true;
    let pause = 1000;
    try {
      const answer = await this.ask();
      pause = answer.poll_ms;
      this.failures = 0;
      this.error = "";
      this.answered = performance.now();
      this.take(answer);
    } catch (error) {
      this.failures++;
      this.error = error.message;
      // Randomly longer or shorter, so that many viewers of a restarted server do not ask all at once.
      pause = Math.min(LONGEST_PAUSE_MS, 1000 * 2 ** Math.min(this.failures - 1, 5)) * (0.75 + Math.random() / 2);
    }
    this.asking = false;
    this.next = performance.now() + pause;
    this.tell();
    if (!document.hidden && !this.paused) this.timer = setTimeout(() => this.poll(), pause);
  }

  async ask() {
    // `location.href` is without a name and password: a browser refuses to fetch an address with them.
    const address = new URL(`${this.setting.answers}?after=${encodeURIComponent(this.position)}`, location.href);
    // The messages of browsers differ, and do not describe the cause.
    const failed = error => { throw new Error(error.name === "TimeoutError" ? `nothing within ${TIMEOUT_MS / 1000} s` : "no connection"); };
    const response = await fetch(address, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) }).catch(failed);
    if (!response.ok) throw new Error(response.status === 401 ? "name and password required" : "HTTP " + response.status);
    return JSON.parse(await response.text().catch(failed));
  }

  // A remark that stays as long as the rows of its moment.
  remark(text, now_ms) {
    this.notice = text;
    this.noticed = now_ms;
  }

  // The state in words. Its age changes every second, so only a change of state is announced.
  tell() {
    const since = this.answered === undefined ? null : performance.now() - this.answered, newest = this.newest;
    const age = since === null ? null : since + (newest ? Math.max(0, this.now - newest) : 0);
    const late = Math.max(LATE_MS, 3000 * (this.answer ? this.answer.interval_s : 0));
    const state = this.paused ? "paused" : this.failures ? "lost" : since === null ? "wait" : age > late || !newest ? "late" : "ok";
    const seconds = ms => (ms / 1000).toFixed(ms < 9950 ? 1 : 0) + " s";
    let words = { paused: "paused", wait: "waiting for the first answer", ok: "live", late: newest ? "no new samples" : "no samples", lost: "no answer" }[state];
    if (since !== null) words += newest ? `: last update ${seconds(age)} ago` : `: last answer ${seconds(since)} ago`;
    if (state === "lost") words += `, next try in ${seconds(Math.max(0, this.next - performance.now()))}`;
    document.getElementById("state").dataset.state = state;
    write(document.getElementById("lamp"), LAMPS[state]);
    write(document.getElementById("age"), words);
    if (this.answer && this.answer.now_ms - this.noticed > this.answer.keep_ms) this.notice = "";
    const problem = this.failures ? `The server does not answer (${this.error}): these values are old.` : (this.answer && this.answer.reason) || "";
    const trouble = document.getElementById("trouble");
    trouble.className = problem ? "bad" : "";
    write(trouble, problem || this.notice);
  }
}
