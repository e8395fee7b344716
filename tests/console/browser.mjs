// Headless Chromium, and what must never happen in its pages.

import { chromium } from "playwright-core";

/** What must never happen in a page: a dialog, an error of a script, a violation of the policy, a request elsewhere. */
export const faults = [];

export function check(condition, message) {
  if (!condition) throw new Error(message);
}

export const launch = () =>
  chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync", "--disable-lcd-text"],
  });

/** Opens an empty page, whose requests all have to be to the server `at`. */
export async function newPage(context, at) {
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.on("dialog", (dialog) => {
    faults.push(`a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("pageerror", (error) => faults.push(`an error: ${error}`));
  page.on("console", (message) => {
    // A refused request is one of the cases.
    const isExpected = message.text().startsWith("Failed to load resource");
    if (message.type() === "error" && !isExpected) faults.push(`the console: ${message.text()}`);
  });
  page.on("request", (request) => {
    const to = request.url();
    if (!to.startsWith(at) && !to.startsWith("data:")) faults.push(`a request to ${to}`);
  });
  return page;
}

/** Runs those of the functions that the variable `STEPS` names, or all; `TIMES` prints how long each takes. */
export async function run(steps) {
  for (const step of steps) {
    if (process.env.STEPS && !process.env.STEPS.split(",").includes(step.name)) continue;
    const began = Date.now();
    await step();
    check(faults.length === 0, `${step.name}: ${faults.join("\n")}`);
    if (process.env.TIMES) console.log(`  ${step.name}: ${Date.now() - began} ms`);
  }
}
