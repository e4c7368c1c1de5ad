// What all scenarios share: where to send requests, and what a good answer is.
import { check } from 'k6';
import http from 'k6/http';

/** A setting from the environment (`k6 run -e NAME=value`). */
export function setting(/** @type {string} */ name, /** @type {string} */ fallback) {
  return __ENV[name] || fallback;
}

/** The application under test: scheme and host as clients use them. */
export const target = setting('TARGET', 'http://demo.localhost:8080').replace(/\/$/, '');
const paths = setting('PATHS', '/').split(',');

/** Requests a second at the scenario's full load. */
export const rate = Number(setting('RATE', '200'));

/** Options that every scenario begins with. ADDRESS sends the host of TARGET to an IP[:port], as `curl --resolve` does. */
export const base = {
  hosts: __ENV.ADDRESS ? { [new RegExp('^https?://([^:/]+)').exec(target)?.[1] ?? '']: __ENV.ADDRESS } : {},
  insecureSkipTLSVerify: setting('INSECURE', 'false') === 'true',
  discardResponseBodies: true,
  userAgent: 'tak-os-ingress-loadtest',
};

/**
 * What must hold, else k6 ends with status 99. P95 is in milliseconds and includes the application's own time.
 * @type {Record<string, string[]>}
 */
export const thresholds = {
  http_req_failed: ['rate<0.001'],
  checks: ['rate>0.999'],
  http_req_duration: [`p(95)<${setting('P95', '500')}`],
  // The load that was promised was sent: otherwise add VUs, or a second machine for k6.
  dropped_iterations: ['count<10'],
};

/** One request, the paths in turn. */
export function request() {
  const path = paths[__ITER % paths.length] ?? '/';
  // One name for all paths, so that k6 keeps one series.
  const answer = http.get(target + path, { tags: { name: 'page' } });
  check(answer, { 'status is 200': (a) => a.status === 200 });
}
