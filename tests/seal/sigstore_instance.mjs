// A Sigstore instance on loopback: Fulcio, its CT log and Rekor of the Sigstore project's own @sigstore/mock, and an
// issuer of OIDC tokens that answers as GitHub Actions does. Usage, where `npm install @sigstore/mock` was done:
//
//     node sigstore_instance.mjs TRUST_CONFIG
//
// It writes the client's trust configuration to that file, then prints its address, and serves until it is ended. The
// CA does not check the signature of a token: who can reach this server can have any identity. Tests only.

import { createHash, generateKeyPairSync } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import http from 'node:http';
import { createRequire } from 'node:module';

const require = createRequire(`${process.cwd()}/`);
const { fulcioHandler, initializeCA, initializeCTLog, initializeTLog, rekorHandler } = require('@sigstore/mock');
const START = '2026-01-01T00:00:00Z';
const pair = () => generateKeyPairSync('ec', { namedCurve: 'prime256v1' });
const base64 = (bytes) => Buffer.from(bytes).toString('base64');

/** A token of that subject and issuer; it lives as many seconds as `life` says. */
function token(query) {
  const now = Math.floor(Date.now() / 1000);
  const life = Number(query.get('life') ?? 300);
  const claims = {
    iss: query.get('iss') ?? 'https://issuer.example',
    sub: query.get('sub') ?? 'https://ci.example/runner',
    aud: query.get('audience') ?? 'sigstore',
    iat: now,
    exp: now + life,
  };
  const parts = [{ alg: 'none' }, claims].map((part) => Buffer.from(JSON.stringify(part)).toString('base64url'));
  return JSON.stringify({ value: `${parts.join('.')}.` });
}

/** A request for a certificate as the CA's handler reads it: the token in the body, the signing request as PEM. */
function certificateRequest(request, body) {
  const oidcIdentityToken = (request.headers.authorization ?? '').replace('Bearer ', '');
  const pem = Buffer.from(JSON.parse(body).certificateSigningRequest, 'base64').toString();
  return JSON.stringify({ credentials: { oidcIdentityToken }, certificateSigningRequest: pem });
}

/** The public key of a log, as a trusted root names it. */
function log(url, der) {
  return {
    baseUrl: url,
    hashAlgorithm: 'SHA2_256',
    publicKey: { rawBytes: base64(der), keyDetails: 'PKIX_ECDSA_P256_SHA_256', validFor: { start: START } },
    logId: { keyId: base64(createHash('sha256').update(der).digest()) },
  };
}

function trust(url, ca, ctlog, tlog) {
  const service = [{ url, majorApiVersion: 1, validFor: { start: START }, operator: 'tests' }];
  return {
    mediaType: 'application/vnd.dev.sigstore.clienttrustconfig.v0.1+json',
    trustedRoot: {
      mediaType: 'application/vnd.dev.sigstore.trustedroot+json;version=0.1',
      tlogs: [log(url, tlog.publicKey)],
      certificateAuthorities: [
        {
          subject: { organization: 'tests', commonName: 'sigstore' },
          uri: url,
          certChain: { certificates: [{ rawBytes: base64(ca.rootCertificate) }] },
          validFor: { start: START },
        },
      ],
      ctlogs: [log(url, ctlog.publicKey)],
      timestampAuthorities: [],
    },
    signingConfig: {
      mediaType: 'application/vnd.dev.sigstore.signingconfig.v0.2+json',
      caUrls: service,
      oidcUrls: service,
      rekorTlogUrls: service,
      rekorTlogConfig: { selector: 'ANY' },
      tsaUrls: [],
      tsaConfig: { selector: 'ANY' },
    },
  };
}

const server = http.createServer();
server.listen(0, '127.0.0.1', async () => {
  const url = `http://127.0.0.1:${server.address().port}`;
  const ctlog = await initializeCTLog(pair());
  const ca = await initializeCA(pair(), ctlog);
  const tlog = await initializeTLog(url, pair());
  const [fulcio, rekor] = [fulcioHandler(ca), rekorHandler(tlog)];
  server.on('request', async (request, response) => {
    const asked = new URL(request.url, url);
    const body = (await request.toArray()).join('');
    if (asked.pathname === '/token') {
      response.end(token(asked.searchParams));
      return;
    }
    const ofFulcio = asked.pathname === fulcio.path;
    const answer = await (ofFulcio ? fulcio.fn(certificateRequest(request, body)) : rekor.fn(body));
    response.writeHead(answer.statusCode, { 'Content-Type': answer.contentType ?? 'text/plain' });
    response.end(answer.response);
  });
  writeFileSync(process.argv[2], JSON.stringify(trust(url, ca, ctlog, tlog), null, 2));
  console.log(url);
});
