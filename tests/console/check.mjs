// Uses the console in headless Chromium, with and without scripts: `node check.mjs URL SERVE_URL [SCREENSHOTS]`.
// `URL` is that of the scripted server beside this file, `SERVE_URL` that of the example `serve`. For the variables
// `STEPS` and `TIMES`, see `run`.

import { mkdirSync, readFileSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { check, launch, newPage, run } from "./browser.mjs";

const [url, serveUrl, folder] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const FIRST_PAINT = 500; // milliseconds, with 1,000 live runs
const MEMORY = 150; // MB of a tab, after 100,000 events
const SCREENSHOT = 60 * 1024; // bytes

const browser = await launch();

async function open(operator, options = {}) {
  const { at = url, ...rest } = options;
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...rest });
  await context.addCookies([{ name: "operator", value: operator, url: at }]);
  return newPage(context, at);
}

let runs = 0;
/** Starts a run, and returns its id once `until` is in its events. */
async function start(prompt, until = "RUN_FINISHED", at = url) {
  const id = `run-${++runs}`;
  const abort = new AbortController();
  const response = await fetch(`${at}/agent`, {
    method: "POST",
    signal: abort.signal,
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      threadId: `thread-of-${id}`, runId: id, tools: [], context: [], state: {}, forwardedProps: {},
      messages: [{ id: `m-${id}`, role: "user", content: prompt }],
    }),
  });
  let events = "";
  const decoder = new TextDecoder();
  for await (const chunk of response.body) {
    events += decoder.decode(chunk, { stream: true });
    if (events.includes(until)) break;
  }
  check(events.includes(until), `${prompt}: no ${until} in ${events}`);
  abort.abort();
  return id;
}

const threadPage = (id) => `${url}/console/thread?tenant=&thread=thread-of-${id}`;
const runPage = (id, at = url) => `${at}/console/run?tenant=&thread=thread-of-${id}&run=${id}`;

/** The questions of a run among the approvals. */
const ofRun = (page, id) => page.getByRole("region", { name: `Run ${id}`, exact: true });

/** Waits until a text is in the page, which reloads itself where no script runs. */
async function shows(page, text, reload) {
  for (let n = 0; n < 200; n++) {
    if ((await page.locator("body").textContent()).includes(text)) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
    if (reload) await page.reload();
  }
  throw new Error(`no ${text} in ${await page.locator("body").textContent()}`);
}

async function decides() {
  for (const javaScriptEnabled of [true, false]) {
    const page = await open("ann", { javaScriptEnabled });
    const approved = await start("pay");
    await page.goto(`${url}/console/approvals`);
    await ofRun(page, approved).getByRole("button", { name: "Approve", exact: true }).click();
    check(page.url().endsWith(`run=${approved}`), `approved, and at ${page.url()}`);
    await shows(page, 'The tool says: paid {"invoice":"2026-117"', !javaScriptEnabled);

    const denied = await start("pay");
    await page.goto(runPage(denied));
    await page.getByLabel("Reason, which the model reads").fill("The invoice is not ours.");
    await page.getByRole("button", { name: "Deny" }).click();
    await shows(page, "The invoice is not ours.", !javaScriptEnabled);

    const edited = await start("pay");
    await page.goto(runPage(edited));
    await page.getByText("Edit the arguments").click();
    await page.getByLabel("Arguments as a JSON object").fill("{");
    await page.getByRole("button", { name: "Approve with these arguments" }).click();
    check((await page.getByRole("alert").innerText()).includes("not JSON"), "an edit that is not JSON");
    await page.goto(runPage(edited));
    await page.getByText("Edit the arguments").click();
    await page.getByLabel("Arguments as a JSON object").fill('{"amount": 42}');
    await page.getByRole("button", { name: "Approve with these arguments" }).click();
    await shows(page, 'paid {"amount":42}', !javaScriptEnabled);
    await page.context().close();
    console.log(`approved, denied and edited ${javaScriptEnabled ? "with" : "without"} scripts`);
  }
}

async function twoOperators() {
  const id = await start("pay");
  const [ann, bob] = [await open("ann"), await open("bob")];
  for (const page of [ann, bob]) await page.goto(`${url}/console/approvals`);
  await ofRun(ann, id).getByRole("button", { name: "Approve", exact: true }).click();
  await ofRun(bob, id).getByRole("button", { name: "Deny" }).click();
  check((await bob.getByRole("alert").innerText()).includes("answered already"), "the second operator is told");
  await ann.context().close();
  await bob.context().close();
  console.log("of two operators, the second is told");
}

async function watches() {
  const id = await start("write", "word5 ");
  const page = await open("ann");
  await page.goto(runPage(id));
  const words = async () => (await page.locator("#entries").textContent()).match(/word\d+/g) ?? [];
  const first = (await words()).length;
  check(first > 0, "the page has the words so far");
  const marks = () => page.locator("rect.now").evaluateAll((rings) => rings.map((ring) => ring.dataset.at));
  check((await page.locator("#at").innerText()) === "the model answers", "where the run is");
  const model = await marks();
  check(model.length > 0 && model.every((at) => at === "model"), `the layers around the model are marked, not ${model}`);
  await shows(page, "word100", false);
  const all = await words();
  check(all.length === 100 && new Set(all).size === 100, `each word once, not ${all.length}`);
  await page.getByText("Load the whole run.").waitFor();
  check((await page.locator("#state").innerText()) === "ended", "the state of the run");
  check((await marks()).length === 0, "an ended run is in no layer");
  await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Run ended"));
  // A list notices a change.
  await page.goto(`${url}/console/?show=waiting`);
  await start("pay");
  await page.getByText("The list has changed.").waitFor();
  await page.context().close();
  console.log(`a live run had ${first} words, and then all`);
}

async function keyboard() {
  const id = await start("pay");
  const page = await open("ann");
  await page.goto(runPage(id));
  const focused = () => page.evaluate(() => {
    const element = document.activeElement;
    return element.matches(":focus-visible") ? element.textContent.trim() : "";
  });
  await page.keyboard.press("Tab");
  check((await focused()) === "Skip to the content", "the first stop skips the navigation");
  let stops = 0;
  while ((await focused()) !== "Approve") {
    await page.keyboard.press("Tab");
    check(++stops < 40, "the keyboard reaches no approval");
  }
  await page.keyboard.press("Enter");
  await shows(page, "The tool says", false);
  // A key in the field of a reason sends no approval.
  const other = await start("pay");
  await page.goto(runPage(other));
  await page.getByLabel("Reason, which the model reads").focus();
  await page.keyboard.type("no");
  await page.keyboard.press("Enter");
  await shows(page, ": denied", false);
  check(!(await page.locator("#entries").textContent()).includes("paid"), "Enter denies");
  await page.context().close();
  console.log(`an approval is ${stops} stops away`);
}

async function hostile() {
  const id = await start("hostile");
  for (const javaScriptEnabled of [true, false]) {
    const page = await open("ann", { javaScriptEnabled });
    for (const at of [`${url}/console/approvals`, runPage(id)]) {
      await page.goto(at);
      check((await page.locator("img").count()) === 0, "no markup of a model");
      const text = await page.locator("body").textContent();
      check(text.includes("⟦U+202E⟧") || text.includes("\\u202e"), "bidi is visible");
      check(!text.includes("\u202e"), "bidi has no effect");
    }
    await page.context().close();
  }
  // Its events arrive while the page is open, too.
  const page = await open("ann");
  await page.goto(runPage(id));
  await page.getByRole("button", { name: "Approve", exact: true }).click();
  await shows(page, "The tool says", false);
  check((await page.locator("img").count()) === 0, "no markup of a result");
  await page.context().close();

  const eve = await open("eve");
  await eve.goto(runPage(id));
  check(!(await eve.locator("body").textContent()).includes("javascript:"), "eve reads no content");
  await eve.context().close();
  const none = await open("nobody");
  check((await none.goto(`${url}/console/`)).status() === 403, "no operator");
  await none.context().close();

  const long = await start("long");
  const reader = await open("ann");
  await reader.goto(runPage(long));
  await reader.getByText("KiB more").first().waitFor();
  await reader.context().close();
  console.log("hostile and long texts are texts");
}

async function forged() {
  // A page of another site sends a form with the operator's cookies.
  const id = await start("pay");
  const page = await open("ann");
  await page.goto(runPage(id));
  const fields = await page.locator("form", { has: page.locator("button[value=approve]") }).first()
    .locator("input").evaluateAll((inputs) => inputs.map((input) => [input.name, input.value]));
  const context = page.context();
  await context.route("http://evil.example/**", (route) => route.fulfill({
    contentType: "text/html",
    body: `<form method="post" action="${url}/console/approvals/reply">${fields.map(([name, value]) =>
      `<input name="${name}" value="${value}">`).join("")}<button name="decision" value="approve">x</button></form>`,
  }));
  const evil = await context.newPage();
  await evil.goto("http://evil.example/");
  const [response] = await Promise.all([
    evil.waitForResponse((response) => response.url().includes("/reply")),
    evil.getByRole("button").click(),
  ]);
  check(response.status() === 403, `a forged form was answered with ${response.status()}`);
  await page.reload();
  check((await page.locator("#state").innerText()) === "waiting", "the run still waits");
  await context.close();
  console.log("a form of another site is refused");
}

async function accessible() {
  const waits = await start("pay");
  const ended = await start("write", "RUN_FINISHED");
  const live = await start("forever", "TEXT_MESSAGE_CONTENT");
  const pages = [`${url}/console/`, `${url}/console/?show=waiting`, `${url}/console/?show=ended`, `${url}/console/approvals`,
    `${url}/console/stacks`, `${url}/console/threads`, `${url}/console/decisions`, `${url}/console/usage`, threadPage(ended), runPage(waits), runPage(ended), runPage(live), `${url}/console/none`];
  let rules = 0;
  const looks = [["light", 1440], ["dark", 375], ["light", 320]];
  for (const [colorScheme, width] of looks) {
    const page = await open("ann", { colorScheme, viewport: { width, height: 900 }, bypassCSP: true });
    for (const at of pages) {
      await page.goto(at);
      await page.addScriptTag({ content: axe });
      const [found, passed, overflow] = await page.evaluate(async () => {
        for (const details of document.querySelectorAll("details")) details.open = true;
        const { violations, passes } = await window.axe.run(document, {
          runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
          resultTypes: ["violations"],
        });
        const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).slice(0, 3).join(" ")}`);
        return [found, passes.length, document.documentElement.scrollWidth - innerWidth];
      });
      check(found.length === 0, `${at}, ${colorScheme}, ${width} px:\n${found.join("\n")}`);
      rules = Math.max(rules, passed);
      check(overflow <= 0, `${at} at ${width} px is ${overflow} px too wide`);
    }
    await page.context().close();
  }
  console.log(`axe: no violation on ${pages.length} pages, in 2 colour schemes and 3 widths (up to ${rules} rules pass)`);
}

async function screenshots() {
  if (!folder) return;
  mkdirSync(folder, { recursive: true });
  await start("forever", "TEXT_MESSAGE_CONTENT");
  for (const prompt of ["write", "write", "pay"]) await start(prompt);
  const id = await start("pay");
  const shots = [["runs", `${url}/console/?show=ended`], ["approval", runPage(id)], ["stack", `${url}/console/stacks`]];
  for (const colorScheme of ["light", "dark"]) {
    for (const width of [375, 900, 1440]) {
      const page = await open("ann", { colorScheme, viewport: { width, height: width === 900 ? 620 : 900 } });
      for (const [name, at] of shots) {
        await page.goto(at);
        if (name === "runs") await page.waitForFunction(() => document.getElementById("status").textContent !== "");
        const path = `${folder}/${name}-${colorScheme}${width === 900 ? "" : `-${width}`}.png`;
        const shot = name === "approval" && width === 900 ? page.locator(".card").first() : page;
        await shot.screenshot({ path, animations: "disabled" });
        // Those of 900 px are in the documentation.
        const size = statSync(path).size;
        check(width !== 900 || size <= SCREENSHOT, `${path} has ${size} bytes`);
      }
      await page.context().close();
    }
  }
  console.log(`screenshots are in ${folder}`);
}

async function example() {
  const id = await start("write hello to note.txt", "RUN_FINISHED", serveUrl);
  const page = await open("ann", { at: serveUrl });
  await page.goto(`${serveUrl}/console/stacks`);
  await page.getByText("Detach").first().waitFor();
  await page.goto(runPage(id, serveUrl));
  await page.getByRole("button", { name: "Approve", exact: true }).click();
  await shows(page, "Result of", true);
  await page.context().close();
  console.log("the example's console approves a call");
}

/** The memory of the process of a page, in MB, without what it shares. */
async function memory(page) {
  const session = await page.context().newCDPSession(page);
  await session.send("HeapProfiler.collectGarbage");
  const root = await browser.newBrowserCDPSession();
  const { processInfo } = await root.send("SystemInfo.getProcessInfo");
  const renderers = processInfo.filter((process) => process.type === "renderer");
  const sizes = renderers.map(({ id }) => {
    const rollup = readFileSync(`/proc/${id}/smaps_rollup`, "utf8");
    return Number(/^Pss:\s+(\d+)/m.exec(rollup)[1]) / 1024;
  });
  return Math.max(...sizes);
}

async function figures() {
  const id = await start("flood", "TEXT_MESSAGE_CONTENT");
  const page = await open("ann");
  const followed = page.waitForResponse((response) => response.url().includes("/run/events"));
  await page.goto(runPage(id));
  await followed;
  await fetch(`${url}/flood`, { method: "POST" });
  await page.getByText("Load the whole run.").waitFor({ timeout: 90_000 });
  const used = await memory(page);
  const entries = await page.locator("#entries > li").count();
  console.log(`memory of the tab after 100,000 events: ${used.toFixed(0)} MB (bar: ${MEMORY} MB), ${entries} entries`);
  check(used <= MEMORY, "the tab takes too much memory");
  check(entries <= 500, "the page keeps too many entries");
  await page.context().close();

  await fetch(`${url}/live/1000`, { method: "POST" });
  const lists = await open("ann");
  const paints = [];
  for (let n = 0; n < 5; n++) {
    await lists.goto(`${url}/console/`);
    const paint = await lists.waitForFunction(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);
    paints.push(await paint.jsonValue());
  }
  check(Number.parseInt(await lists.locator("[data-count=live]").innerText(), 10) >= 1000, "1,000 live runs");
  paints.sort((a, b) => a - b);
  console.log(`first paint with 1,000 live runs: median ${paints[2].toFixed(0)} ms of ${paints.map(Math.round).join(", ")} (bar: ${FIRST_PAINT} ms)`);
  await lists.context().close();
}

await run([
  screenshots, decides, twoOperators, watches, keyboard, hostile, forged, example, accessible, figures,
]);
await browser.close();
