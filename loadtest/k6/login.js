// Logins, which cost the proxy more than pages do. KIND=basic sends USERNAME and PASSWORD with each request, and a wrong
// password once in a hundred requests; KIND=form follows the redirects to the identity provider, fills in its form and comes
// back with a session. A throttled client (429) is a good answer to wrong passwords alone.
import { check, fail } from 'k6';
import encoding from 'k6/encoding';
import http from 'k6/http';
import { base, rate, setting, target } from './common.js';

const kind = setting('KIND', 'basic');
const username = setting('USERNAME', '');
const password = setting('PASSWORD', '');
const page = target + setting('PATHS', '/').split(',')[0];
const logins = Math.max(1, Math.ceil(rate / 10));

/** @type {import('k6/options').Options} */
export const options = {
  ...base,
  discardResponseBodies: false,
  thresholds: {
    checks: ['rate>0.99'],
    'http_req_duration{name:login}': [`p(95)<${setting('P95', '2000')}`],
  },
  scenarios: {
    login: {
      executor: 'constant-arrival-rate',
      rate: logins,
      timeUnit: '1s',
      duration: setting('DURATION', '2m'),
      preAllocatedVUs: logins * 2,
      maxVUs: logins * 20,
    },
  },
};

function basic() {
  const wrong = __ITER % 100 === 99;
  const credentials = encoding.b64encode(`${username}:${wrong ? 'not the password' : password}`);
  const answer = http.get(page, {
    headers: { Authorization: `Basic ${credentials}` },
    tags: { name: wrong ? 'wrong password' : 'login' },
    responseCallback: http.expectedStatuses(200, 401, 429),
  });
  if (wrong) {
    check(answer, { 'a wrong password is refused': (a) => a.status === 401 || a.status === 429 });
  } else {
    check(answer, { 'a right password is accepted': (a) => a.status === 200 });
  }
}

function form() {
  http.cookieJar().clear(page);
  const asked = http.get(page, { tags: { name: 'to the provider' } });
  if (!check(asked, { 'the provider shows its form': (a) => a.status === 200 && a.html('form').size() > 0 })) {
    fail(`no form but ${asked.status} at ${asked.url}`);
  }
  const back = asked.submitForm({
    fields: { [setting('USER_FIELD', 'username')]: username, [setting('PASSWORD_FIELD', 'password')]: password },
    params: { tags: { name: 'login' } },
  });
  check(back, { 'the page is shown after login': (a) => a.status === 200 && a.url.startsWith(target) });
  const again = http.get(page, { redirects: 0, tags: { name: 'with a session' } });
  check(again, { 'the session is known': (a) => a.status === 200 });
}

export default kind === 'form' ? form : basic;
