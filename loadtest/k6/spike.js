// A calm tenth of RATE, then RATE at once, then calm: does it recover? The calm after the spike has thresholds of its own.
import { base, rate, request, setting, thresholds } from './common.js';

const calm = Math.max(1, Math.ceil(rate / 10));

/** @type {import('k6/options').Scenario} */
const phase = {
  executor: 'constant-arrival-rate',
  timeUnit: '1s',
  rate: calm,
  duration: '30s',
  preAllocatedVUs: calm,
  maxVUs: calm * 10,
};

/** @type {import('k6/options').Options} */
export const options = {
  ...base,
  thresholds: {
    'http_req_failed{scenario:spike}': ['rate<0.01'],
    'http_req_failed{scenario:after}': thresholds['http_req_failed'] ?? [],
    'http_req_duration{scenario:after}': thresholds['http_req_duration'] ?? [],
  },
  scenarios: {
    before: phase,
    spike: { ...phase, rate, startTime: '30s', duration: setting('SPIKE', '20s'), preAllocatedVUs: rate, maxVUs: rate * 4 },
    after: { ...phase, startTime: '1m' },
  },
};

export default request;
