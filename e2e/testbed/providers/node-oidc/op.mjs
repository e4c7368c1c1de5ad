// A real OpenID provider (panva/node-oidc-provider) on a free port of 127.0.0.1, which the line "listening PORT" names.
// The client "web" may return to the URIs in REDIRECT_URIS; access tokens are opaque and live ACCESS_TTL seconds.
// Refresh tokens rotate, and one that comes twice ends the whole grant. Any password will do.
import { createServer } from 'node:http';
import { Provider } from 'oidc-provider';

const groups = { alice: ['team-a', 'ops'], bob: ['team-a'] };
const list = (name) => (process.env[name] || '').split(',').filter(Boolean);

let serve;
const server = createServer((request, response) => serve(request, response));
server.listen(0, '127.0.0.1', () => {
  const { port } = server.address();
  const provider = new Provider(`http://127.0.0.1:${port}`, {
    clients: [{
      client_id: 'web',
      client_secret: 'web-secret/+1',
      grant_types: ['authorization_code', 'refresh_token'],
      redirect_uris: list('REDIRECT_URIS'),
      post_logout_redirect_uris: list('POST_LOGOUT_REDIRECT_URIS'),
    }],
    claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['name', 'preferred_username', 'groups'] },
    cookies: { keys: ['only for tests'] },
    pkce: { required: () => true },
    rotateRefreshToken: true,
    issueRefreshToken: async (ctx, client) => client.grantTypeAllowed('refresh_token'),
    features: {
      devInteractions: { enabled: true },
      introspection: { enabled: true },
      revocation: { enabled: true },
      rpInitiatedLogout: { enabled: true },
    },
    ttl: {
      AccessToken: Number(process.env.ACCESS_TTL || 300),
      IdToken: 300, RefreshToken: 1800, Session: 3600, Grant: 3600, Interaction: 600,
    },
    findAccount: async (ctx, id) => ({
      accountId: id,
      claims: async () => ({
        sub: id, name: id, preferred_username: id,
        email: `${id}@example.com`, email_verified: true,
        groups: groups[id] || [],
      }),
    }),
  });
  provider.on('server_error', (ctx, error) => console.error(error));
  provider.on('grant.error', (ctx, error) => console.log('grant error', error.message, error.error_detail || ''));
  provider.on('grant.revoked', () => console.log('grant revoked'));
  provider.on('grant.success', (ctx) => console.log('grant', ctx.oidc.params.grant_type));
  serve = provider.callback();
  console.log(`listening ${port}`);
});
