// From nothing to RATE a second in steps: where does it bend? It stops by itself where one in a hundred requests fails.
import { base, rate, request, setting, thresholds } from './common.js';

const step = setting('STEP', '1m');

/** @type {import('k6/options').Options} */
export const options = {
  ...base,
  thresholds: {
    ...thresholds,
    http_req_failed: [{ threshold: 'rate<0.01', abortOnFail: true, delayAbortEval: '20s' }],
  },
  scenarios: {
    ramp: {
      executor: 'ramping-arrival-rate',
      startRate: 1,
      timeUnit: '1s',
      preAllocatedVUs: Math.ceil(rate / 4),
      maxVUs: rate * 2,
      stages: [0.1, 0.25, 0.5, 0.75, 1].flatMap((part) => [
        { target: Math.ceil(rate * part), duration: '10s' },
        { target: Math.ceil(rate * part), duration: step },
      ]),
    },
  },
};

export default request;
