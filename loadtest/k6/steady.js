// The same rate for a while: is it served, and how fast? RATE a second for DURATION.
import { base, rate, request, setting, thresholds } from './common.js';

/** @type {import('k6/options').Options} */
export const options = {
  ...base,
  thresholds,
  scenarios: {
    steady: {
      executor: 'constant-arrival-rate',
      rate,
      timeUnit: '1s',
      duration: setting('DURATION', '2m'),
      preAllocatedVUs: Math.ceil(rate / 4),
      maxVUs: rate * 2,
    },
  },
};

export default request;
