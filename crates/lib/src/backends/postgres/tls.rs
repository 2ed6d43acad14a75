//! TLS with the meaning of libpq's `sslmode`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::config::{Root, Tls, TlsMode};

/// The TLS settings of a connection. The error is a sentence about the set-up.
pub(super) fn config(tls: &Tls, home: Option<&Path>) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let checks = checks(tls, home)?;
    let verifier = Arc::new(Verifier { checks, provider: Arc::clone(&provider) });
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| format!("TLS cannot be set up here: {e}."))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let (Some(cert), Some(key)) = (&tls.cert, &tls.key) else { return Ok(builder.with_no_client_auth()) };
    let certs = certificates(cert)?;
    let key = PrivateKeyDer::from_pem_file(key)
        .map_err(|e| format!("the key {} of sslkey cannot be read: {e}.", key.display()))?;
    builder
        .with_client_auth_cert(certs, key)
        .map_err(|e| format!("the certificate of sslcert and the key of sslkey cannot be used: {e}."))
}

/// The checks of a server's certificate.
enum Checks {
    /// None: TLS then protects from listeners, but not from a false server.
    Nothing,
    /// Its signature, and perhaps its name.
    Signed { roots: RootCertStore, trusted: Vec<CertificateDer<'static>>, name: bool },
}

fn checks(tls: &Tls, home: Option<&Path>) -> Result<Checks, String> {
    let usual = home.map(|h| h.join(".postgresql/root.crt")).filter(|f| f.exists());
    let root = tls.root.clone().or(usual.map(Root::File));
    let trusted = match root {
        Some(Root::File(file)) => certificates(&file)?,
        Some(Root::System) => system(),
        None if tls.mode < TlsMode::VerifyCa => return Ok(Checks::Nothing),
        None => {
            return Err("sslmode=verify-ca and verify-full need a root certificate, and there is none. Add \
                        sslrootcert=system for the authorities this machine trusts, or sslrootcert=FILE."
                .into());
        }
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(trusted.iter().cloned());
    if roots.is_empty() {
        return Err("no root certificate to verify the PostgreSQL server with could be read. Check \
                    sslrootcert."
            .into());
    }
    Ok(Checks::Signed { roots, trusted, name: tls.mode == TlsMode::VerifyFull })
}

fn system() -> Vec<CertificateDer<'static>> {
    rustls_native_certs::load_native_certs().certs
}

fn certificates(file: &PathBuf) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |e| format!("the certificate {} cannot be read: {e}. Check the path.", file.display());
    CertificateDer::pem_file_iter(file).map_err(wrong)?.collect::<Result<_, _>>().map_err(wrong)
}

struct Verifier {
    checks: Checks,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier")
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Checks::Signed { roots, trusted, name } = &self.checks else {
            return Ok(ServerCertVerified::assertion());
        };
        let cert = ParsedCertificate::try_from(end_entity)?;
        // A server's self-signed certificate may be the trusted root itself.
        if !trusted.iter().any(|t| t.as_ref() == end_entity.as_ref()) {
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&cert, roots, intermediates, now, algorithms)?;
        }
        if *name {
            verify_server_name(&cert, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
