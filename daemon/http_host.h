/* http_host.h: where an HTTP server listens, and which names it goes by. Pure, but for http_listen. */
#ifndef NCTD_HTTP_HOST_H
#define NCTD_HTTP_HOST_H
#include <stdbool.h>
#include <stddef.h>
#include "nct_layer.h"

/* A listening socket on "ADDRESS:PORT", not blocking, and the endpoint as bound. The descriptor, or -EINVAL, -EACCES (not
 * loopback and not `insecure`), -EADDRINUSE ..., with a sentence that names http.endpoint. */
int http_listen(const char *endpoint, bool insecure, char ret_bound[80], nct_why *why);
/* What http_listen would refuse for its syntax or its reach; binds nothing. 0, -EINVAL, -EACCES. */
int http_endpoint_check(const char *endpoint, bool insecure, nct_why *why);
/* Whether a Host header's value (with or without a port) is one of localhost, 127.0.0.1, [::1], the bound address, or of
 * the blank-separated `hosts`. Case does not matter, nor a dot at the end. */
bool http_host_known(const char *host, const char *bound, const char *hosts);
#endif
