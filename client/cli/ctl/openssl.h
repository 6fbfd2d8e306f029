// Handles of OpenSSL objects with one owner each, and OpenSSL's errors as texts.
#pragma once

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdint>
#include <string_view>

#include "ipc/base/result.h"
#include "ipc/base/unique_handle.h"

namespace headrace::ctl {

template <typename T, void (*Free)(T*)>
struct OpensslTraits {
  using Value = T*;
  static Value None() { return nullptr; }
  static void Release(Value value) { Free(value); }
};

inline void FreeBio(BIO* bio) { BIO_free(bio); }

using UniqueCertificate = UniqueHandle<OpensslTraits<X509, X509_free>>;
using UniqueKey = UniqueHandle<OpensslTraits<EVP_PKEY, EVP_PKEY_free>>;
using UniqueExtension = UniqueHandle<OpensslTraits<X509_EXTENSION, X509_EXTENSION_free>>;
using UniqueNames = UniqueHandle<OpensslTraits<GENERAL_NAMES, GENERAL_NAMES_free>>;
using UniqueName = UniqueHandle<OpensslTraits<GENERAL_NAME, GENERAL_NAME_free>>;
using UniqueNumber = UniqueHandle<OpensslTraits<BIGNUM, BN_free>>;
using UniqueBio = UniqueHandle<OpensslTraits<BIO, FreeBio>>;

// "doing: reason" from OpenSSL's queue of errors, which it empties.
Error OpensslError(Code code, std::string_view doing);

std::int64_t UnixSeconds(const ASN1_TIME* time);

}  // namespace headrace::ctl
