// A real Chromium at https://app.example.com and https://ops.example.com, which lead to a port of this machine: it logs in
// in two tabs, is refreshed, logs out, and somebody else is refused. The authorities of the ingress and of the
// provider are trusted through an NSS database; no certificate error is ignored.
// usage: node login.mjs PORT ISSUER FOLDER_FOR_SCREENSHOTS AUTHORITY_FILE...
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const [port, issuer, shots, ...authorities] = process.argv.slice(2);
const app = 'https://app.example.com';
const ops = 'https://ops.example.com';
const wait = { timeout: 60000 };

const home = mkdtempSync(join(tmpdir(), 'browser-'));
const db = join(home, '.pki/nssdb');
mkdirSync(db, { recursive: true });
mkdirSync(shots, { recursive: true });
execFileSync('certutil', ['-d', `sql:${db}`, '-N', '--empty-password']);
for (const [i, file] of authorities.entries()) {
  execFileSync('certutil', ['-d', `sql:${db}`, '-A', '-t', 'C,,', '-n', `test-${i}`, '-i', file]);
}

const open = (name) => chromium.launchPersistentContext(join(home, name), {
  executablePath: process.env.CHROMIUM || '/usr/bin/chromium',
  headless: true,
  env: { ...process.env, HOME: home },
  args: [
    `--host-resolver-rules=MAP *.example.com:443 127.0.0.1:${port}`, '--no-sandbox', '--disable-gpu', '--disable-quic',
    '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync',
  ],
});
const arrives = (page, url) => page.waitForURL((u) => u.href === url, wait);
const shoot = (page, name) => page.screenshot({ path: join(shots, `${name}.png`) });
const told = (body, name) => body.headers.filter(([n]) => n.toLowerCase() === name).map(([, value]) => value);

async function asksForPassword(page) {
  assert.ok(page.url().startsWith(issuer), page.url());
  await page.locator('#kc-form-login').waitFor(wait);
}

async function logIn(page, user) {
  await asksForPassword(page);
  await page.fill('[name=username]', user);
  await page.fill('[name=password]', `${user}-pw`);
  await page.click('[type=submit]');
}

try {
  const context = await open('alice');
  const a = context.pages()[0] || await context.newPage();
  const b = await context.newPage();
  await a.goto(`${app}/a?x=1`, wait);
  await b.goto(`${app}/b`, wait);
  await asksForPassword(b);
  await shoot(a, 'login');
  await logIn(a, 'alice');
  await arrives(a, `${app}/a?x=1`);
  const body = JSON.parse(await a.textContent('body'));
  assert.deepEqual(told(body, 'x-auth-request-email'), ['alice@example.com']);
  assert.deepEqual(told(body, 'cookie'), []);

  // The other tab's login is still under way. Keycloak's page goes on by itself, or when it is loaded again.
  await b.waitForURL((u) => u.href === `${app}/b`, { timeout: 5000 }).catch(() => b.reload(wait));
  await arrives(b, `${app}/b`);
  await shoot(b, 'app');

  const session = async () => (await context.cookies(app)).filter((c) => /^_tak_oauth2(_\d+)?$/.test(c.name));
  assert.notDeepEqual(await session(), []);
  for (const cookie of await session()) {
    assert.deepEqual([cookie.httpOnly, cookie.secure, cookie.sameSite], [true, true, 'Lax'], cookie.name);
  }
  assert.equal(await a.evaluate(() => document.cookie), '');
  const bare = await a.evaluate(async () => (await fetch('/data', { credentials: 'omit', redirect: 'manual' })).status);
  assert.equal(bare, 401);

  const value = async () => (await session()).map((c) => c.value).join();
  const before = await value();
  const end = Date.now() + 90000;
  while (await value() === before) {
    assert.ok(Date.now() < end, 'the session was not refreshed');
    for (const page of [a, b]) {
      const statuses = await page.evaluate(() => Promise.all([1, 2, 3].map(async (i) => (await fetch(`/${i}`)).status)));
      assert.deepEqual(statuses, [200, 200, 200]);
    }
  }

  await a.goto(`${app}/_tak/oauth2/logout`, wait);
  await asksForPassword(a);
  await shoot(a, 'logout');
  assert.deepEqual(await session(), []);
  await b.goto(`${app}/b`, wait);
  await asksForPassword(b);
  await context.close();

  const other = await open('bob');
  const page = other.pages()[0] || await other.newPage();
  await page.goto(`${ops}/`, wait);
  await logIn(page, 'bob');
  await page.getByText('not as somebody who may use this page').waitFor(wait);
  assert.ok(page.url().startsWith(`${ops}/`), page.url());
  await shoot(page, 'refused');
  await other.close();
} finally {
  rmSync(home, { recursive: true, force: true });
}
